/* Regions, shared receive queues, datagrams. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/resource.h>
#include "harness.h"

static void contradicting_rights(void)
{
	struct side s = side_on(open_first());
	int wrong[] = { IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_ATOMIC,
			IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE, 1 << 12 };
	for (int i = 0; i < 4; i++) {
		errno = 0;
		CHECK(!ibv_reg_mr(s.pd, s.memory, 4096, wrong[i]));
		EQUAL(errno, EINVAL);
	}
	int right[] = { 0, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_LOCAL_WRITE, ALL_ACCESS,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_HUGETLB,
			/* From the optional range, known to nobody. */
			IBV_ACCESS_LOCAL_WRITE | 1 << 29 };
	for (int i = 0; i < 7; i++) {
		struct ibv_mr *mr = ibv_reg_mr(s.pd, s.memory, 4096, right[i]);
		CHECK(mr);
		CHECK(mr->lkey != mr->rkey);
		CHECK(mr->addr == s.memory && mr->length == 4096 && mr->pd == s.pd && mr->context == s.context);
		EQUAL(ibv_dereg_mr(mr), 0);
	}
}

static void memory_that_is_not_there(void)
{
	struct side s = side_on(open_first());
	char *page = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(s.pd, page, 8192, IBV_ACCESS_REMOTE_READ);
	CHECK(mr);
	EQUAL(ibv_dereg_mr(mr), 0);
	errno = 0;
	CHECK(!ibv_reg_mr(s.pd, page, 8192, IBV_ACCESS_LOCAL_WRITE));
	EQUAL(errno, EFAULT);
	munmap(page + 4096, 4096);
	errno = 0;
	CHECK(!ibv_reg_mr(s.pd, page, 8192, 0));
	EQUAL(errno, EFAULT);
	CHECK(!ibv_reg_mr(s.pd, NULL, 4096, 0));
	errno = 0;
	CHECK(!ibv_reg_mr(s.pd, page, (size_t)-1, 0) && (errno == EINVAL || errno == EFAULT));
}

/* Memory that is registered, then unmapped, made read-only, or beyond the end of its file. */
static char *vanishing(struct side *s, int how, struct ibv_mr **mr)
{
	int fd = how == 2 ? memfd_create("vanishing", 0) : -1;
	if (fd >= 0)
		EQUAL(ftruncate(fd, 65536), 0);
	char *memory = mmap(NULL, 65536, PROT_READ | PROT_WRITE,
			    fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
	CHECK(memory != MAP_FAILED);
	memset(memory, 1, 65536);
	CHECK(*mr = ibv_reg_mr(s->pd, memory, 65536, ALL_ACCESS));
	if (how == 0)
		EQUAL(munmap(memory, 65536), 0);
	if (how == 1)
		EQUAL(mprotect(memory, 65536, PROT_READ), 0);
	if (fd >= 0)
		EQUAL(ftruncate(fd, 0), 0);
	return memory;
}

static void memory_taken_away(void)
{
	/* 1 (read-only) is no hindrance to a sender. */
	for (int how = 0; how < 3; how++) {
		struct side a, b;
		struct ibv_mr *mr;
		for (uint32_t length = 8; length <= 50000; length += 49992) {
			struct ibv_sge sge = { .length = length };
			pair(&a, &b, IBV_QPT_RC);
			struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
			if (how != 1) {
				EQUAL(post_recv(&b, 70, 0, 65536), 0);
				sge.addr = (uintptr_t)vanishing(&a, how, &mr);
				sge.lkey = mr->lkey;
				EQUAL(post(&a, &wr), 0);
				CHECK(expect(a.cq, 1, IBV_WC_LOC_PROT_ERR).vendor_err == 16);
				EQUAL(ibv_dereg_mr(mr), 0);
				pair(&a, &b, IBV_QPT_RC);
			}
			sge.addr = (uintptr_t)vanishing(&b, how, &mr);
			sge.lkey = mr->lkey;
			struct ibv_recv_wr recv = { .wr_id = 70, .sg_list = &sge, .num_sge = 1 }, *bad;
			EQUAL(ibv_post_recv(b.qp, &recv, &bad), 0);
			struct ibv_sge good = part(&a, 0, length);
			wr.sg_list = &good;
			EQUAL(post(&a, &wr), 0);
			expect(a.cq, 1, IBV_WC_REM_OP_ERR);
			expect(b.cq, 70, IBV_WC_LOC_PROT_ERR);
			pair(&a, &b, IBV_QPT_RC);
			char *target = vanishing(&b, how, &mr);
			wr = send_of(&good, IBV_WR_RDMA_WRITE);
			wr.wr.rdma.remote_addr = (uintptr_t)target;
			wr.wr.rdma.rkey = mr->rkey;
			good = part(&a, 0, length);
			EQUAL(post(&a, &wr), 0);
			expect(a.cq, 1, IBV_WC_REM_ACCESS_ERR);
		}
		/* Others are none the worse for it. */
		pair(&a, &b, IBV_QPT_RC);
		EQUAL(post_recv(&b, 70, 0, 64), 0);
		struct ibv_sge sge = part(&a, 0, 64);
		struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
		EQUAL(post(&a, &wr), 0);
		expect(a.cq, 1, IBV_WC_SUCCESS);
		expect(b.cq, 70, IBV_WC_SUCCESS);
	}
}

static char *unmapped;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)context;
	_exit(signal == SIGSEGV && info->si_addr == unmapped ? 42 : 43);
}

/* How a child ends that touches what is not there; it has a handler from before the device, from after it, or none. */
static int end_of_fault(int when)
{
	pid_t child = fork();
	if (child == 0) {
		struct rlimit none = { 0, 0 };
		setrlimit(RLIMIT_CORE, &none);
		struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
		if (when == 1)
			sigaction(SIGSEGV, &action, NULL);
		struct side s = side_on(open_first());
		if (when == 2)
			sigaction(SIGSEGV, &action, NULL);
		struct ibv_mr *mr = ibv_reg_mr(s.pd, s.memory, 4096, 0);
		CHECK(mr);
		unmapped = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		*(volatile char *)unmapped = 1;
		_exit(1);
	}
	int status = 0;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void faults_of_the_program(void)
{
	EQUAL(end_of_fault(0), -SIGSEGV);
	EQUAL(end_of_fault(1), 42);
	EQUAL(end_of_fault(2), 42);
}

static void offset_addresses(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_mr *mr = ibv_reg_mr_iova(b.pd, b.memory + 64, 4096, 0x10000, ALL_ACCESS);
	CHECK(mr && mr->addr == b.memory + 64);
	strcpy(a.memory, "at an offset");
	struct ibv_sge sge = part(&a, 0, 16);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	wr.wr.rdma.remote_addr = 0x10000 + 8;
	wr.wr.rdma.rkey = mr->rkey;
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	CHECK(!strcmp(b.memory + 64 + 8, "at an offset"));
}

static void registering_again(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_pd *other = ibv_alloc_pd(b.context);
	uint32_t handle = b.mr->handle, lkey = b.mr->lkey, rkey = b.mr->rkey;
	EQUAL(ibv_rereg_mr(b.mr, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	EQUAL(ibv_rereg_mr(b.mr, 64, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	EQUAL(ibv_rereg_mr(b.mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 64, 0), IBV_REREG_MR_ERR_INPUT);
	EQUAL(ibv_rereg_mr(b.mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE),
	      IBV_REREG_MR_ERR_INPUT);
	EQUAL(ibv_rereg_mr(b.mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS, NULL,
			   b.memory + 4096, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ), 0);
	CHECK(b.mr->addr == b.memory + 4096 && b.mr->length == 4096 && b.mr->handle == handle);
	/* Peers keep the key that they were given. */
	CHECK(b.mr->lkey == lkey && b.mr->rkey == rkey);
	struct ibv_sge sge = part(&a, 0, 16);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_READ);
	strcpy(b.memory + 4096, "reregistered");
	remote(&wr, &b, 4096);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	CHECK(!strcmp(a.memory, "reregistered"));
	EQUAL(ibv_rereg_mr(b.mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0), 0);
	CHECK(b.mr->pd == other);
	EQUAL(ibv_dealloc_pd(other), EBUSY);
	remote(&wr, &b, 4096);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_REM_ACCESS_ERR);
	EQUAL(ibv_dereg_mr(b.mr), 0);
	EQUAL(ibv_dealloc_pd(other), 0);
}

static void region_of_eight_gigabytes(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	size_t size = 8ull << 30;
	char *big = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(big != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(b.pd, big, size, ALL_ACCESS);
	CHECK(mr && mr->length == size);
	strcpy(a.memory, "far away");
	struct ibv_sge sge = part(&a, 0, 16);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	wr.wr.rdma.remote_addr = (uintptr_t)big + size - 16;
	wr.wr.rdma.rkey = mr->rkey;
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	CHECK(!strcmp(big + size - 16, "far away"));
}

static void message_of_many_megabytes(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_port_attr port;
	EQUAL(ibv_query_port(a.context, 1, &port), 0);
	EQUAL(port.max_msg_sz, 1u << 31);
	size_t size = 96 << 20;
	uint32_t *from = malloc(size), *to = malloc(size);
	for (size_t i = 0; i < size / 4; i++)
		from[i] = (uint32_t)(i * 2654435761u);
	struct ibv_mr *source = ibv_reg_mr(a.pd, from, size, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *target = ibv_reg_mr(b.pd, to, size, IBV_ACCESS_LOCAL_WRITE);
	CHECK(source && target);
	struct ibv_sge sge = { (uintptr_t)to, (uint32_t)size, target->lkey };
	struct ibv_recv_wr recv = { .wr_id = 2, .sg_list = &sge, .num_sge = 1 }, *bad;
	EQUAL(ibv_post_recv(b.qp, &recv, &bad), 0);
	sge = (struct ibv_sge){ (uintptr_t)from, (uint32_t)size, source->lkey };
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	EQUAL(expect(b.cq, 2, IBV_WC_SUCCESS).byte_len, size);
	EQUAL(memcmp(from, to, size), 0);
	/* Above the largest message: an error, at once or in the completion. */
	struct ibv_sge twice[2] = { { (uintptr_t)from, 1u << 31, source->lkey }, { (uintptr_t)from, 1, source->lkey } };
	wr = send_of(twice, IBV_WR_SEND);
	wr.num_sge = 2;
	if (!post(&a, &wr))
		CHECK(completion(a.cq).status != IBV_WC_SUCCESS);
}

static void shared_receives_and_their_limit(void)
{
	struct side a, b;
	struct ibv_context *context = open_first();
	a = side_on(context);
	b = side_on(context);
	struct ibv_srq_init_attr init = { .srq_context = &b, .attr = { .max_wr = 8, .max_sge = 2 } };
	b.srq = ibv_create_srq(b.pd, &init);
	CHECK(b.srq && b.srq->srq_context == &b && b.srq->pd == b.pd && b.srq->context == context);
	CHECK(init.attr.max_wr >= 8 && init.attr.max_sge >= 2);
	make_qp(&a, IBV_QPT_RC);
	make_qp(&b, IBV_QPT_RC);
	connect_to(&a, &b);
	connect_to(&b, &a);
	struct ibv_sge sge = part(&b, 0, 64);
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	for (int i = 0; i < 4; i++) {
		recv.wr_id = i;
		EQUAL(ibv_post_srq_recv(b.srq, &recv, &bad), 0);
	}
	struct ibv_srq_attr attr = { .srq_limit = 3 };
	EQUAL(ibv_modify_srq(b.srq, &attr, IBV_SRQ_LIMIT), 0);
	memset(&attr, 0, sizeof attr);
	EQUAL(ibv_query_srq(b.srq, &attr), 0);
	EQUAL(attr.srq_limit, 3);
	int flags = fcntl(context->async_fd, F_GETFL);
	EQUAL(fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK), 0);
	sge = part(&a, 0, 16);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	struct ibv_async_event event;
	for (int i = 0; i < 3; i++) {
		EQUAL(post(&a, &wr), 0);
		expect(a.cq, 1, IBV_WC_SUCCESS);
		EQUAL(expect(b.cq, i, IBV_WC_SUCCESS).qp_num, b.qp->qp_num);
		/* Strictly below: three are left after the first. */
		int got = ibv_get_async_event(context, &event);
		EQUAL(got, i == 1 ? 0 : -1);
		if (!got) {
			EQUAL(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
			CHECK(event.element.srq == b.srq);
			ibv_ack_async_event(&event);
			EQUAL(b.srq->events_completed, 1);
		}
	}
	EQUAL(ibv_query_srq(b.srq, &attr), 0);
	EQUAL(attr.srq_limit, 0);
	attr.srq_limit = attr.max_wr + 1;
	EQUAL(ibv_modify_srq(b.srq, &attr, IBV_SRQ_LIMIT), EINVAL);
	EQUAL(ibv_modify_srq(b.srq, &attr, 1 << 5), EINVAL);
	for (int i = 0; i < 20; i++)
		if (ibv_post_srq_recv(b.srq, &recv, &bad)) {
			CHECK(bad == &recv);
			EQUAL(ibv_post_srq_recv(b.srq, &recv, &bad), ENOMEM);
			return;
		}
	CHECK(!"the SRQ never filled up");
}

static void srq_sizes(void)
{
	struct side s = side_on(open_first());
	struct ibv_device_attr limits;
	EQUAL(ibv_query_device(s.context, &limits), 0);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = limits.max_srq_wr + 1, .max_sge = 1 } };
	errno = 0;
	CHECK(!ibv_create_srq(s.pd, &init) && errno == EINVAL);
	init.attr = (struct ibv_srq_attr){ .max_wr = 1, .max_sge = limits.max_srq_sge + 1 };
	CHECK(!ibv_create_srq(s.pd, &init));
	init.attr = (struct ibv_srq_attr){ .max_wr = 4, .max_sge = 1 };
	struct ibv_srq *srq = ibv_create_srq(s.pd, &init);
	struct ibv_srq_attr attr = { .max_wr = 64 };
	EQUAL(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), 0);
	EQUAL(ibv_query_srq(srq, &attr), 0);
	CHECK(attr.max_wr >= 64);
	struct ibv_srq_init_attr_ex ex = { .attr = { .max_wr = 4, .max_sge = 1 }, .pd = s.pd,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD, .srq_type = IBV_SRQT_BASIC };
	CHECK(ibv_create_srq_ex(s.context, &ex));
	ex.srq_type = IBV_SRQT_TM;
	errno = 0;
	CHECK(!ibv_create_srq_ex(s.context, &ex) && errno == EOPNOTSUPP);
}

static int datagram(struct side *from, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint32_t length)
{
	struct ibv_sge sge = part(from, 0, length);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND_WITH_IMM);
	wr.imm_data = htonl(0xfeedface);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = qkey;
	return post(from, &wr);
}

static void ud_pair(struct side *a, struct side *b, struct ibv_ah **ah)
{
	struct ibv_context *context = open_first();
	*a = side_on(context);
	*b = side_on(context);
	make_qp(a, IBV_QPT_UD);
	make_qp(b, IBV_QPT_UD);
	ready_datagrams(a->qp);
	ready_datagrams(b->qp);
	struct ibv_ah_attr attr = address(b);
	*ah = ibv_create_ah(a->pd, &attr);
	CHECK(*ah);
}

static void datagrams_and_their_header(void)
{
	struct side a, b;
	struct ibv_ah *ah;
	ud_pair(&a, &b, &ah);
	strcpy(a.memory, "datagram");
	memset(b.memory, 0xee, 256);
	EQUAL(post_recv(&b, 2, 0, 40 + 64), 0);
	EQUAL(datagram(&a, ah, b.qp->qp_num, 0x1234, 16), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	struct ibv_wc wc = expect(b.cq, 2, IBV_WC_SUCCESS);
	EQUAL(wc.byte_len, 40 + 16);
	EQUAL(wc.wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
	EQUAL(wc.src_qp, a.qp->qp_num);
	EQUAL(ntohl(wc.imm_data), 0xfeedface);
	CHECK(!strcmp(b.memory + 40, "datagram"));
	/* An IPv4 header with a right checksum. */
	unsigned char *ip = (unsigned char *)b.memory + 20;
	EQUAL(ip[0], 0x45);
	uint32_t sum = 0;
	for (int i = 0; i < 20; i += 2)
		sum += ip[i] << 8 | ip[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	EQUAL(sum, 0xffff);
	EQUAL(memcmp(ip + 12, a.gid.raw + 12, 4), 0);

	/* The way back. */
	struct ibv_ah_attr back;
	memset(&back, 0xff, sizeof back);
	EQUAL(ibv_init_ah_from_wc(b.context, 1, &wc, (struct ibv_grh *)b.memory, &back), 0);
	EQUAL(back.is_global, 1);
	EQUAL(back.port_num, 1);
	EQUAL(back.grh.sgid_index, 0);
	EQUAL(memcmp(&back.grh.dgid, &a.gid, 16), 0);
	struct ibv_ah *reply = ibv_create_ah_from_wc(b.pd, &wc, (struct ibv_grh *)b.memory, 1);
	CHECK(reply && reply->pd == b.pd && reply->context == b.context);
	strcpy(b.memory, "reply");
	EQUAL(post_recv(&a, 3, 4096, 128), 0);
	EQUAL(datagram(&b, reply, wc.src_qp, 0x1234, 8), 0);
	expect(b.cq, 1, IBV_WC_SUCCESS);
	expect(a.cq, 3, IBV_WC_SUCCESS);
	CHECK(!strcmp(a.memory + 4096 + 40, "reply"));
	EQUAL(ibv_dealloc_pd(b.pd), EBUSY);
	EQUAL(ibv_destroy_ah(reply), 0);
	memset(b.memory, 0, 40);
	EQUAL(ibv_init_ah_from_wc(b.context, 1, &wc, (struct ibv_grh *)b.memory, &back), -1);
}

static void datagrams_nobody_takes(void)
{
	struct side a, b;
	struct ibv_ah *ah;
	ud_pair(&a, &b, &ah);
	EQUAL(post_recv(&b, 2, 0, 4096), 0);
	EQUAL(datagram(&a, ah, b.qp->qp_num, 0x4321, 16), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	EQUAL(datagram(&a, ah, b.qp->qp_num ^ 0x555, 0x1234, 16), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	expect_none(b.cq);
	/* Above the MTU: an error, at once or in the completion. */
	int status = datagram(&a, ah, b.qp->qp_num, 0x1234, 65536);
	if (!status)
		CHECK(completion(a.cq).status != IBV_WC_SUCCESS);
	expect_none(b.cq);
}

static void address_handles(void)
{
	struct side s = side_on(open_first());
	struct ibv_ah_attr attr = address(&s);
	attr.is_global = 0;
	errno = 0;
	CHECK(!ibv_create_ah(s.pd, &attr) && errno == EINVAL);
	attr = address(&s);
	attr.port_num = 9;
	CHECK(!ibv_create_ah(s.pd, &attr));
	attr = address(&s);
	attr.grh.sgid_index = 99;
	CHECK(!ibv_create_ah(s.pd, &attr));
	attr = address(&s);
	struct ibv_ah *ah = ibv_create_ah(s.pd, &attr);
	CHECK(ah);
	uint8_t mac[6];
	uint16_t vid;
	attr.grh.dgid = (union ibv_gid){ .raw = { [10] = 0xff, [11] = 0xff, [12] = 224, [13] = 129, [14] = 2, [15] = 3 } };
	EQUAL(ibv_resolve_eth_l2_from_gid(s.context, &attr, mac, &vid), 0);
	EQUAL(memcmp(mac, "\x01\x00\x5e\x01\x02\x03", 6), 0);
	EQUAL(ibv_destroy_ah(ah), 0);
}

static void scattered_lists_of_many_packets(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	for (int i = 0; i < MEMORY; i++)
		a.memory[i] = (char)(i ^ i >> 8);
	struct ibv_sge parts[4] = { part(&a, 0, 1), part(&a, 1, 300000), part(&a, 300001, 7), part(&a, 300008, 500000) };
	struct ibv_send_wr wr = send_of(parts, IBV_WR_RDMA_WRITE);
	wr.num_sge = 4;
	remote(&wr, &b, 3);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	EQUAL(memcmp(a.memory, b.memory + 3, 800008), 0);
}

static const struct test tests[] = {
	TEST(contradicting_rights),
	TEST(memory_that_is_not_there),
	TEST(memory_taken_away),
	TEST(faults_of_the_program),
	TEST(offset_addresses),
	TEST(registering_again),
	TEST(region_of_eight_gigabytes),
	TEST(message_of_many_megabytes),
	TEST(shared_receives_and_their_limit),
	TEST(srq_sizes),
	TEST(datagrams_and_their_header),
	TEST(datagrams_nobody_takes),
	TEST(address_handles),
	TEST(scattered_lists_of_many_packets),
};
MAIN(tests)
