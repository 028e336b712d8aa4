/* ibv_wr_*, ibv_create_cq_ex, and what else hangs on the extended tables. */
#include "harness.h"

static struct ibv_qp_ex *make_qp_ex(struct side *s, enum ibv_qp_type type, uint64_t ops)
{
	struct ibv_qp_init_attr plain = qp_init(s, type);
	struct ibv_qp_init_attr_ex init = {
		.qp_context = s, .send_cq = s->cq, .recv_cq = s->cq, .cap = plain.cap, .qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = s->pd,
		.send_ops_flags = ops,
	};
	s->qp = ibv_create_qp_ex(s->context, &init);
	if (!s->qp)
		return NULL;
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(s->qp);
	CHECK(ex && &ex->qp_base == s->qp);
	return ex;
}

#define RC_OPS (IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND | \
		IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | \
		IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_INV)

static struct ibv_qp_ex *pair_ex(struct side *a, struct side *b)
{
	struct ibv_context *context = open_first();
	*a = side_on(context);
	*b = side_on(context);
	struct ibv_qp_ex *ex = make_qp_ex(a, IBV_QPT_RC, RC_OPS);
	CHECK(ex);
	make_qp(b, IBV_QPT_RC);
	connect_to(a, b);
	connect_to(b, a);
	return ex;
}

static void start(struct ibv_qp_ex *qp, uint64_t id)
{
	ibv_wr_start(qp);
	qp->wr_id = id;
	qp->wr_flags = IBV_SEND_SIGNALED;
}

static void length_is_the_sum_of_the_list(void)
{
	struct side a, b;
	struct ibv_qp_ex *qp = pair_ex(&a, &b);
	for (int i = 0; i < 100; i++)
		a.memory[i] = (char)i;
	struct ibv_sge list[3] = { part(&a, 0, 10), part(&a, 10, 20), part(&a, 30, 30) };
	EQUAL(post_recv(&b, 5, 0, 128), 0);
	start(qp, 1);
	ibv_wr_send(qp);
	ibv_wr_set_sge_list(qp, 3, list);
	EQUAL(ibv_wr_complete(qp), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	EQUAL(expect(b.cq, 5, IBV_WC_SUCCESS).byte_len, 60);
	EQUAL(memcmp(a.memory, b.memory, 60), 0);

	/* Inline lists count too, and the memory is free at once. */
	char one[4] = "abc", two[8] = "defghij";
	struct ibv_data_buf bufs[2] = { { one, 3 }, { two, 7 } };
	EQUAL(post_recv(&b, 6, 0, 128), 0);
	start(qp, 2);
	ibv_wr_send_imm(qp, htonl(0x80000001));
	ibv_wr_set_inline_data_list(qp, 2, bufs);
	memset(two, 'x', 7);
	EQUAL(ibv_wr_complete(qp), 0);
	expect(a.cq, 2, IBV_WC_SUCCESS);
	struct ibv_wc wc = expect(b.cq, 6, IBV_WC_SUCCESS);
	EQUAL(wc.byte_len, 10);
	EQUAL(ntohl(wc.imm_data), 0x80000001);
	EQUAL(memcmp(b.memory, "abcdefghij", 10), 0);
}

static void several_requests_at_once(void)
{
	struct side a, b;
	struct ibv_qp_ex *qp = pair_ex(&a, &b);
	strcpy(a.memory, "written");
	uint64_t *counter = (uint64_t *)(b.memory + 512);
	*counter = 10;
	EQUAL(post_recv(&b, 9, 8192, 16), 0);
	start(qp, 1);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.memory);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.memory, 8);
	qp->wr_id = 2;
	ibv_wr_rdma_read(qp, b.mr->rkey, (uintptr_t)b.memory);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.memory + 64, 8);
	qp->wr_id = 3;
	ibv_wr_atomic_fetch_add(qp, b.mr->rkey, (uintptr_t)counter, 5);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.memory + 128, 8);
	qp->wr_id = 4;
	ibv_wr_atomic_cmp_swp(qp, b.mr->rkey, (uintptr_t)counter, 15, 99);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.memory + 136, 8);
	qp->wr_id = 5;
	ibv_wr_rdma_write_imm(qp, b.mr->rkey, (uintptr_t)b.memory + 256, htonl(77));
	ibv_wr_set_inline_data(qp, "inline", 7);
	EQUAL(ibv_wr_complete(qp), 0);
	for (uint64_t id = 1; id <= 5; id++)
		expect(a.cq, id, IBV_WC_SUCCESS);
	EQUAL(ntohl(expect(b.cq, 9, IBV_WC_SUCCESS).imm_data), 77);
	CHECK(!strcmp(b.memory, "written") && !strcmp(a.memory + 64, "written"));
	CHECK(!strcmp(b.memory + 256, "inline"));
	EQUAL(*(uint64_t *)(a.memory + 128), 10);
	EQUAL(*(uint64_t *)(a.memory + 136), 15);
	EQUAL(*counter, 99);
}

static void aborted_and_wrong_batches(void)
{
	struct side a, b;
	struct ibv_qp_ex *qp = pair_ex(&a, &b);
	start(qp, 1);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.memory);
	ibv_wr_set_inline_data(qp, "never", 6);
	ibv_wr_abort(qp);
	expect_none(a.cq);
	CHECK(!b.memory[0]);

	/* All or nothing. */
	char big[4096] = "";
	start(qp, 2);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.memory);
	ibv_wr_set_inline_data(qp, "never", 6);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.memory);
	ibv_wr_set_inline_data(qp, big, sizeof big);
	EQUAL(ibv_wr_complete(qp), EINVAL);
	expect_none(a.cq);
	CHECK(!b.memory[0]);
	struct ibv_sge list[5] = { part(&a, 0, 1), part(&a, 0, 1), part(&a, 0, 1), part(&a, 0, 1), part(&a, 0, 1) };
	start(qp, 3);
	ibv_wr_send(qp);
	ibv_wr_set_sge_list(qp, 5, list);
	EQUAL(ibv_wr_complete(qp), EINVAL);
	/* Out of order: refused, and harmless. */
	ibv_wr_set_sge(qp, 0, 0, 0);
	ibv_wr_abort(qp);
	EQUAL(ibv_wr_complete(qp), EINVAL);
	start(qp, 4);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.memory);
	ibv_wr_set_inline_data(qp, "works", 6);
	EQUAL(ibv_wr_complete(qp), 0);
	expect(a.cq, 4, IBV_WC_SUCCESS);
	CHECK(!strcmp(b.memory, "works"));
}

static void all_or_nothing(void)
{
	struct side a, b;
	struct ibv_qp_ex *qp = pair_ex(&a, &b);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	EQUAL(ibv_query_qp(a.qp, &attr, 0, &init), 0);
	start(qp, 1);
	for (uint32_t i = 0; i <= init.cap.max_send_wr; i++) {
		ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.memory);
		ibv_wr_set_inline_data(qp, "too many", 8);
	}
	EQUAL(ibv_wr_complete(qp), ENOMEM);
	for (int last = 0; last < 3; last++) {
		start(qp, 1);
		ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.memory);
		ibv_wr_set_inline_data(qp, "then wrong", 10);
		if (last == 0) {
			ibv_wr_rdma_read(qp, b.mr->rkey, (uintptr_t)b.memory);
			ibv_wr_set_inline_data(qp, "x", 1);
		} else {
			ibv_wr_atomic_fetch_add(qp, b.mr->rkey, (uintptr_t)b.memory, 1);
			ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.memory, last == 1 ? 7 : 16);
		}
		EQUAL(ibv_wr_complete(qp), EINVAL);
	}
	expect_none(a.cq);
	CHECK(!b.memory[0]);
}

static void operations_of_a_type(void)
{
	struct side s = side_on(open_first());
	errno = 0;
	CHECK(!make_qp_ex(&s, IBV_QPT_UD, IBV_QP_EX_WITH_RDMA_READ) && errno == EOPNOTSUPP);
	CHECK(!make_qp_ex(&s, IBV_QPT_UC, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP) && errno == EOPNOTSUPP);
	CHECK(!make_qp_ex(&s, IBV_QPT_UD, IBV_QP_EX_WITH_BIND_MW) && errno == EOPNOTSUPP);
	CHECK(!make_qp_ex(&s, IBV_QPT_RC, IBV_QP_EX_WITH_TSO) && errno == EOPNOTSUPP);
	struct ibv_qp_ex *qp = make_qp_ex(&s, IBV_QPT_UD, IBV_QP_EX_WITH_SEND);
	CHECK(qp && qp->wr_send && !qp->wr_rdma_write && !qp->wr_send_imm);
	ready_datagrams(s.qp);
	struct ibv_ah_attr attr = address(&s);
	struct ibv_ah *ah = ibv_create_ah(s.pd, &attr);
	EQUAL(post_recv(&s, 7, 0, 128), 0);
	start(qp, 1);
	ibv_wr_send(qp);
	ibv_wr_set_ud_addr(qp, ah, s.qp->qp_num, 0x1234);
	ibv_wr_set_inline_data(qp, "to myself", 10);
	EQUAL(ibv_wr_complete(qp), 0);
	struct ibv_wc first = completion(s.cq), second = completion(s.cq);
	CHECK(first.status == IBV_WC_SUCCESS && second.status == IBV_WC_SUCCESS);
	EQUAL(first.wr_id + second.wr_id, 8);
	CHECK(!strcmp(s.memory + 40, "to myself"));
}

/* Atomic WRITE, by both ways to post, and what is refused of it. */
static void writes_of_eight_bytes(void)
{
	struct side a, b;
	struct ibv_context *context = open_first();
	struct ibv_device_attr_ex attr;
	EQUAL(ibv_query_device_ex(context, NULL, &attr), 0);
	CHECK(attr.device_cap_flags_ex & 1ULL << 40);
	uint64_t value = 0x1122334455667788;
	/* Right, right, at an odd address, of another length, beyond the region, without the right. */
	enum { BUILT, POSTED, ODD, BEYOND, DENIED, CASES };
	for (int how = 0; how < CASES; how++) {
		a = side_on(context);
		b = side_on(context);
		struct ibv_qp_init_attr plain = qp_init(&a, IBV_QPT_RC);
		struct ibv_qp_init_attr_ex init = { .send_cq = a.cq, .recv_cq = a.cq, .cap = plain.cap,
			.qp_type = IBV_QPT_RC, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
			.pd = a.pd, .send_ops_flags = IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_RDMA_READ };
		a.qp = ibv_create_qp_ex(context, &init);
		CHECK(a.qp);
		make_qp(&b, IBV_QPT_RC);
		connect_to(&a, &b);
		connect_to(&b, &a);
		struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(a.qp);
		struct ibv_mr *denied = ibv_reg_mr(b.pd, b.memory, MEMORY, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
		uint64_t to = (uintptr_t)b.memory + (how == ODD ? 4 : how == BEYOND ? MEMORY : 64);
		uint32_t rkey = how == DENIED ? denied->rkey : b.mr->rkey;
		memcpy(a.memory, &value, 8);
		if (how == POSTED) {
			struct ibv_sge list[2] = { part(&a, 0, 3), part(&a, 3, 5) };
			struct ibv_send_wr wr = send_of(list, IBV_WR_ATOMIC_WRITE), *bad;
			wr.wr.rdma.remote_addr = to, wr.wr.rdma.rkey = rkey;
			EQUAL(ibv_post_send(a.qp, &wr, &bad), EINVAL);
			wr.num_sge = 2;
			EQUAL(ibv_post_send(a.qp, &wr, &bad), 0);
		} else {
			ibv_wr_start(ex);
			ex->wr_id = 1, ex->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_atomic_write(ex, rkey, to, &value);
			EQUAL(ibv_wr_complete(ex), 0);
		}
		struct ibv_wc wc = expect(a.cq, 1, how <= POSTED ? IBV_WC_SUCCESS : how == ODD ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_ACCESS_ERR);
		EQUAL(wc.opcode, IBV_WC_ATOMIC_WRITE);
		uint64_t now[2];
		memcpy(now, b.memory + 64, 16);
		EQUAL(now[0], how <= POSTED ? value : 0);
		EQUAL(now[1], 0);
		expect_none(b.cq);
	}
	/* On no other service. */
	make_qp(&a, IBV_QPT_UC);
	EQUAL(to_init(a.qp), 0);
	struct ibv_sge sge = part(&a, 0, 8);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_ATOMIC_WRITE), *bad;
	EQUAL(ibv_post_send(a.qp, &wr, &bad), EINVAL);
}

static void writes_of_eight_bytes_by_wire(void)
{
	setenv("IRONVERBS_PATH", "wire", 1);
	writes_of_eight_bytes();
}

static void unknown_attributes(void)
{
	struct side s = side_on(open_first());
	struct ibv_qp_init_attr plain = qp_init(&s, IBV_QPT_RC);
	struct ibv_qp_init_attr_ex init = { .send_cq = s.cq, .recv_cq = s.cq, .cap = plain.cap,
		.qp_type = IBV_QPT_RC, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = s.pd };
	struct ibv_qp *qp = ibv_create_qp_ex(s.context, &init);
	CHECK(qp);
	EQUAL(ibv_destroy_qp(qp), 0);
	init.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
	errno = 0;
	CHECK(!ibv_create_qp_ex(s.context, &init) && errno == EOPNOTSUPP);
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	init.create_flags = IBV_QP_CREATE_SCATTER_FCS;
	CHECK(!ibv_create_qp_ex(s.context, &init) && errno == EOPNOTSUPP);
	init.create_flags = 0;
	CHECK(ibv_create_qp_ex(s.context, &init));
}

static void polling_one_by_one(void)
{
	struct side a, b;
	struct ibv_context *context = open_first();
	a = side_on(context);
	b = side_on(context);
	struct ibv_cq_init_attr_ex init = { .cqe = 16, .cq_context = &b, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
	CHECK(cq && cq->cqe >= 16 && cq->cq_context == &b);
	b.cq = ibv_cq_ex_to_cq(cq);
	make_qp(&a, IBV_QPT_RC);
	make_qp(&b, IBV_QPT_RC);
	connect_to(&a, &b);
	connect_to(&b, &a);
	struct ibv_poll_cq_attr attr = { 0 };
	EQUAL(ibv_start_poll(cq, &attr), ENOENT);
	struct ibv_sge sge = part(&a, 0, 33);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND_WITH_IMM);
	wr.imm_data = htonl(0xcafe);
	for (int i = 0; i < 3; i++) {
		EQUAL(post_recv(&b, 20 + i, 0, 64), 0);
		EQUAL(post(&a, &wr), 0);
		expect(a.cq, 1, IBV_WC_SUCCESS);
	}
	int status;
	while ((status = ibv_start_poll(cq, &attr)) == ENOENT)
		usleep(50);
	EQUAL(status, 0);
	for (int i = 0; i < 3; i++) {
		EQUAL(cq->wr_id, 20 + i);
		EQUAL(cq->status, IBV_WC_SUCCESS);
		EQUAL(ibv_wc_read_opcode(cq), IBV_WC_RECV);
		EQUAL(ibv_wc_read_byte_len(cq), 33);
		EQUAL(ntohl(ibv_wc_read_imm_data(cq)), 0xcafe);
		EQUAL(ibv_wc_read_qp_num(cq), b.qp->qp_num);
		EQUAL(ibv_wc_read_wc_flags(cq), IBV_WC_WITH_IMM);
		EQUAL(ibv_wc_read_vendor_err(cq), 0);
		EQUAL(ibv_wc_read_slid(cq), 0);
		EQUAL(ibv_wc_read_sl(cq), 0);
		EQUAL(ibv_next_poll(cq), i < 2 ? 0 : ENOENT);
	}
	ibv_end_poll(cq);
	EQUAL(ibv_start_poll(cq, &attr), ENOENT);
	attr.comp_mask = 1;
	EQUAL(ibv_start_poll(cq, &attr), EINVAL);
	/* There is no tag matching, and no other field. */
	init.wc_flags = IBV_WC_EX_WITH_TM_INFO;
	errno = 0;
	CHECK(!ibv_create_cq_ex(context, &init) && errno == EOPNOTSUPP);
	init.wc_flags = 1 << 12;
	errno = 0;
	CHECK(!ibv_create_cq_ex(context, &init) && errno == EOPNOTSUPP);
}

static uint64_t nanoseconds(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* When it came, whenever it is read. */
/* Who stops reading before the end leaves the rest, in order, to whoever polls next, and nothing of a queue pair that was
 * reset meanwhile. */
static void polling_that_stops_early(void)
{
	struct ibv_context *context = open_first();
	struct side a = side_on(context), b = side_on(context);
	struct ibv_cq_init_attr_ex init = { .cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
	b.cq = ibv_cq_ex_to_cq(cq);
	make_qp(&a, IBV_QPT_RC);
	make_qp(&b, IBV_QPT_RC);
	connect_to(&a, &b);
	connect_to(&b, &a);
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_sge sge = part(&a, 0, 33);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	for (int i = 0; i < 12; i++) {
		EQUAL(post_recv(&b, i, 0, 64), 0);
		EQUAL(post(&a, &wr), 0);
		expect(a.cq, 1, IBV_WC_SUCCESS);
	}
	for (int first = 0; first < 9; first += 3) {
		EQUAL(ibv_start_poll(cq, &attr), 0);
		EQUAL(cq->wr_id, first);
		EQUAL(ibv_next_poll(cq), 0);
		EQUAL(cq->wr_id, first + 1);
		ibv_end_poll(cq);
		expect(b.cq, first + 2, IBV_WC_SUCCESS);
	}
	EQUAL(ibv_start_poll(cq, &attr), 0);
	EQUAL(cq->wr_id, 9);
	EQUAL(ibv_next_poll(cq), 0);
	EQUAL(cq->wr_id, 10);
	EQUAL(to_state(b.qp, IBV_QPS_RESET), 0);
	ibv_end_poll(cq);
	expect_none(b.cq);
	EQUAL(ibv_start_poll(cq, &attr), ENOENT);
	/* A queue of which somebody read in part can be destroyed. */
	EQUAL(ibv_destroy_qp(b.qp), 0);
	EQUAL(ibv_destroy_cq(b.cq), 0);
}

static void times_of_completions(void)
{
	struct ibv_context *context = open_first();
	struct side s = side_on(context);
	struct ibv_cq_init_attr_ex init = { .cqe = 16, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
		IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK | IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
	CHECK(cq);
	CHECK(!cq->read_byte_len && !cq->read_tm_info);
	s.cq = ibv_cq_ex_to_cq(cq);
	make_qp(&s, IBV_QPT_RC);
	connect_to(&s, &s);
	struct ibv_send_wr wr = send_of(NULL, IBV_WR_RDMA_WRITE);
	uint64_t raw = nanoseconds(CLOCK_MONOTONIC), wall = nanoseconds(CLOCK_REALTIME);
	EQUAL(post(&s, &wr), 0);
	pause_ms(100);
	/* By now it is complete, if another thread makes progress; by the first poll at the latest. */
	struct ibv_poll_cq_attr attr = { 0 };
	int status;
	while ((status = ibv_start_poll(cq, &attr)) == ENOENT)
		;
	EQUAL(status, 0);
	uint64_t then = ibv_wc_read_completion_ts(cq), wall_then = ibv_wc_read_completion_wallclock_ns(cq);
	EQUAL(ibv_wc_read_cvlan(cq), 0);
	EQUAL(ibv_wc_read_flow_tag(cq), 0);
	ibv_end_poll(cq);
	CHECK(then >= raw && then <= nanoseconds(CLOCK_MONOTONIC));
	CHECK(wall_then >= wall && wall_then <= nanoseconds(CLOCK_REALTIME));
	/* The order of completions is that of their times. */
	for (int i = 0; i < 10; i++)
		EQUAL(post(&s, &wr), 0);
	for (int i = 0; i < 10; i++) {
		while (ibv_start_poll(cq, &attr) == ENOENT)
			;
		CHECK(ibv_wc_read_completion_ts(cq) >= then);
		then = ibv_wc_read_completion_ts(cq);
		ibv_end_poll(cq);
	}
}

static void moderation_and_clocks(void)
{
	struct side s = side_on(open_first());
	struct ibv_device_attr_ex device;
	EQUAL(ibv_query_device_ex(s.context, NULL, &device), 0);
	EQUAL(device.cq_mod_caps.max_cq_count, 65535);
	EQUAL(device.cq_mod_caps.max_cq_period, 65535);
	EQUAL(device.completion_timestamp_mask, UINT64_MAX);
	EQUAL(device.hca_core_clock, 1000000);
	struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 8, 16 } };
	EQUAL(ibv_modify_cq(s.cq, &attr), 0);
	attr.attr_mask = 2;
	EQUAL(ibv_modify_cq(s.cq, &attr), EINVAL);
	attr.attr_mask = 0;
	EQUAL(ibv_modify_cq(s.cq, &attr), EINVAL);
	EQUAL(ibv_modify_cq(s.cq, NULL), EINVAL);
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	uint64_t before = nanoseconds(CLOCK_MONOTONIC);
	EQUAL(ibv_query_rt_values_ex(s.context, &values), 0);
	EQUAL(values.comp_mask, IBV_VALUES_MASK_RAW_CLOCK);
	uint64_t now = values.raw_clock.tv_sec * 1000000000ull + values.raw_clock.tv_nsec;
	CHECK(now >= before && now <= nanoseconds(CLOCK_MONOTONIC));
	values.comp_mask = 2;
	EQUAL(ibv_query_rt_values_ex(s.context, &values), EINVAL);
	EQUAL(ibv_query_rt_values_ex(s.context, NULL), EINVAL);
}

static void moderate(struct ibv_cq *cq, uint16_t count, uint16_t period)
{
	struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { count, period } };
	EQUAL(ibv_modify_cq(cq, &attr), 0);
}

static void take_event(struct ibv_comp_channel *channel, struct ibv_cq *expected)
{
	struct ibv_cq *cq;
	void *of;
	EQUAL(ibv_get_cq_event(channel, &cq, &of), 0);
	CHECK(cq == expected);
	ibv_ack_cq_events(cq, 1);
}

static void events_that_wait_for_more(void)
{
	struct ibv_context *context = open_first();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct side s = side_on(context);
	EQUAL(ibv_destroy_cq(s.cq), 0);
	s.cq = ibv_create_cq(context, 64, NULL, channel, 0);
	make_qp(&s, IBV_QPT_RC);
	connect_to(&s, &s);
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	struct ibv_send_wr wr = send_of(NULL, IBV_WR_RDMA_WRITE);

	/* Three completions, however long they take; reading them is no reason for an event. */
	moderate(s.cq, 3, 0);
	EQUAL(ibv_req_notify_cq(s.cq, 0), 0);
	for (int i = 0; i < 2; i++) {
		EQUAL(post(&s, &wr), 0);
		expect(s.cq, 1, IBV_WC_SUCCESS);
		EQUAL(poll(&p, 1, 20), 0);
	}
	EQUAL(post(&s, &wr), 0);
	take_event(channel, s.cq);
	expect(s.cq, 1, IBV_WC_SUCCESS);

	/* Any number within 20 ms of the first; twice, as what is known of the first time must not hold up the second. */
	moderate(s.cq, 0, 20000);
	for (int i = 0; i < 2; i++) {
		EQUAL(ibv_req_notify_cq(s.cq, 0), 0);
		uint64_t before = nanoseconds(CLOCK_MONOTONIC);
		for (int j = 0; j < 5; j++)
			EQUAL(post(&s, &wr), 0);
		take_event(channel, s.cq);
		CHECK(nanoseconds(CLOCK_MONOTONIC) - before >= 20000000);
		for (int j = 0; j < 5; j++)
			expect(s.cq, 1, IBV_WC_SUCCESS);
		EQUAL(poll(&p, 1, 0), 0);
	}

	/* What waits does so by the newest rule: none, a shorter time. */
	for (int i = 0; i < 2; i++) {
		moderate(s.cq, 100, 0);
		EQUAL(ibv_req_notify_cq(s.cq, 0), 0);
		EQUAL(post(&s, &wr), 0);
		expect(s.cq, 1, IBV_WC_SUCCESS);
		EQUAL(poll(&p, 1, 20), 0);
		moderate(s.cq, i ? 100 : 0, i ? 1000 : 0);
		take_event(channel, s.cq);
	}

	/* A failure waits for nothing. */
	moderate(s.cq, 100, 0);
	EQUAL(ibv_req_notify_cq(s.cq, 0), 0);
	wr.wr.rdma.rkey = 1;
	struct ibv_sge sge = part(&s, 0, 8);
	wr.sg_list = &sge;
	wr.num_sge = 1;
	EQUAL(post(&s, &wr), 0);
	take_event(channel, s.cq);
	CHECK(completion(s.cq).status != IBV_WC_SUCCESS);

	/* An event that waits is no event to be acknowledged. */
	EQUAL(ibv_destroy_qp(s.qp), 0);
	EQUAL(ibv_destroy_cq(s.cq), 0);
}

static void overrun_that_is_ignored(void)
{
	struct ibv_context *context = open_first();
	struct side s = side_on(context);
	struct ibv_cq_init_attr_ex init = { .cqe = 2, .wc_flags = IBV_WC_EX_WITH_QP_NUM,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
	CHECK(cq);
	s.cq = ibv_cq_ex_to_cq(cq);
	make_qp(&s, IBV_QPT_RC);
	connect_to(&s, &s);
	struct ibv_send_wr wr = send_of(NULL, IBV_WR_RDMA_WRITE);
	for (int i = 0; i < 8; i++) {
		wr.wr_id = i;
		EQUAL(post(&s, &wr), 0);
	}
	/* The youngest are there, and the queue works on. */
	int last = -1;
	while (last != 7) {
		struct ibv_wc wc = completion(s.cq);
		EQUAL(wc.status, IBV_WC_SUCCESS);
		CHECK((int)wc.wr_id > last);
		last = wc.wr_id;
	}
	EQUAL(post(&s, &wr), 0);
	expect(s.cq, 7, IBV_WC_SUCCESS);
	init.flags = 4;
	CHECK(!ibv_create_cq_ex(context, &init) && errno == EOPNOTSUPP);
	init.comp_mask = 4;
	CHECK(!ibv_create_cq_ex(context, &init) && errno == EOPNOTSUPP);
	CHECK(!ibv_create_cq_ex(context, NULL) && errno == EINVAL);
}

static void *many_batches(void *arg)
{
	struct ibv_qp_ex *qp = arg;
	for (int i = 0; i < 200; i++) {
		struct side *s = qp->qp_base.qp_context;
		int status;
		do {
			start(qp, 1);
			qp->wr_flags = 0;
			ibv_wr_rdma_write(qp, s->mr->rkey, (uintptr_t)s->memory);
			ibv_wr_set_inline_data(qp, "x", 1);
			qp->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_rdma_write(qp, s->mr->rkey, (uintptr_t)s->memory);
			ibv_wr_set_inline_data(qp, "y", 1);
			status = ibv_wr_complete(qp);
			if (status == ENOMEM)
				usleep(100);
		} while (status == ENOMEM);
		EQUAL(status, 0);
	}
	return NULL;
}

static void batches_of_two_threads(void)
{
	struct side a, b;
	struct ibv_qp_ex *qp = pair_ex(&a, &b);
	qp->qp_base.qp_context = &b;
	pthread_t thread[2];
	for (int i = 0; i < 2; i++)
		EQUAL(pthread_create(&thread[i], NULL, many_batches, qp), 0);
	/* A full queue takes nothing of a batch. */
	for (int i = 0; i < 400; i++)
		expect(a.cq, 1, IBV_WC_SUCCESS);
	expect_none(a.cq);
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
}

static const struct test tests[] = {
	TEST(length_is_the_sum_of_the_list),
	TEST(several_requests_at_once),
	TEST(aborted_and_wrong_batches),
	TEST(all_or_nothing),
	TEST(operations_of_a_type),
	TEST(writes_of_eight_bytes),
	TEST(writes_of_eight_bytes_by_wire),
	TEST(unknown_attributes),
	TEST(polling_one_by_one),
	TEST(polling_that_stops_early),
	TEST(times_of_completions),
	TEST(events_that_wait_for_more),
	TEST(moderation_and_clocks),
	TEST(overrun_that_is_ignored),
	TEST(batches_of_two_threads),
};
MAIN(tests)
