/* Counters of completions: ibv_create_comp_cntr(3), ibv_qp_attach_comp_cntr(3) and ibv_query_comp_cntr_caps(3) of
 * libibverbs after version 44: the headers here lack them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include "harness.h"

struct ibv_comp_cntr {
	struct ibv_context *context;
	uint32_t handle;
};
struct ibv_comp_cntr_init_attr {
	uint32_t comp_mask;
	int type;
	uint32_t flags;
};
struct ibv_comp_cntr_caps {
	uint64_t max_value;
	uint32_t max_counters;
	uint32_t supported_qp_attach_ops;
};
struct ibv_qp_attach_comp_cntr_attr {
	uint32_t comp_mask;
	uint32_t op_mask;
};
enum { SEND = 1, RECV = 2, READ = 4, REMOTE_READ = 8, WRITE = 16, REMOTE_WRITE = 32, ALL = 63 };
enum { WRS, BYTES };

#define BY_WIRE(name) \
	static void name##_by_wire(void) { setenv("IRONVERBS_PATH", "wire", 1); name(); }

/* At its first use, so that what a child of the program does comes before. */
#define FUNCTION(type, name, parameters, arguments) \
	static type name parameters \
	{ \
		static type (*function) parameters; \
		if (!function) \
			function = (type (*) parameters)dlvsym(RTLD_DEFAULT, #name, "IBVERBS_1.18"); \
		CHECK(function); \
		return function arguments; \
	}
FUNCTION(int, _ibv_query_comp_cntr_caps, (struct ibv_context *c, struct ibv_comp_cntr_caps *p, size_t n), (c, p, n))
FUNCTION(struct ibv_comp_cntr *, ibv_create_comp_cntr, (struct ibv_context *c, struct ibv_comp_cntr_init_attr *a), (c, a))
FUNCTION(int, ibv_destroy_comp_cntr, (struct ibv_comp_cntr *c), (c))
FUNCTION(int, ibv_set_comp_cntr, (struct ibv_comp_cntr *c, uint64_t v), (c, v))
FUNCTION(int, ibv_set_err_comp_cntr, (struct ibv_comp_cntr *c, uint64_t v), (c, v))
FUNCTION(int, ibv_inc_comp_cntr, (struct ibv_comp_cntr *c, uint64_t v), (c, v))
FUNCTION(int, ibv_inc_err_comp_cntr, (struct ibv_comp_cntr *c, uint64_t v), (c, v))
FUNCTION(int, ibv_read_comp_cntr, (struct ibv_comp_cntr *c, uint64_t *v), (c, v))
FUNCTION(int, ibv_read_err_comp_cntr, (struct ibv_comp_cntr *c, uint64_t *v), (c, v))
FUNCTION(int, ibv_qp_attach_comp_cntr, (struct ibv_qp *q, struct ibv_comp_cntr *c, struct ibv_qp_attach_comp_cntr_attr *a), (q, c, a))
FUNCTION(int, ibv_export_buf_dmabuf_fd, (void *b), (b))

static struct ibv_comp_cntr *counter_of(struct ibv_context *context, int type)
{
	struct ibv_comp_cntr_init_attr attr = { .type = type };
	struct ibv_comp_cntr *counter = ibv_create_comp_cntr(context, &attr);
	CHECK(counter && counter->context == context);
	return counter;
}

static int attach(struct ibv_qp *qp, struct ibv_comp_cntr *counter, uint32_t operations)
{
	struct ibv_qp_attach_comp_cntr_attr attr = { .op_mask = operations };
	return ibv_qp_attach_comp_cntr(qp, counter, &attr);
}

static struct ibv_comp_cntr *attached(struct side *s, int type, uint32_t operations)
{
	struct ibv_comp_cntr *counter = counter_of(s->context, type);
	EQUAL(attach(s->qp, counter, operations), 0);
	return counter;
}

static uint64_t value(struct ibv_comp_cntr *counter)
{
	uint64_t value = 0xa5a5;
	EQUAL(ibv_read_comp_cntr(counter, &value), 0);
	return value;
}

static uint64_t errors(struct ibv_comp_cntr *counter)
{
	uint64_t value = 0xa5a5;
	EQUAL(ibv_read_err_comp_cntr(counter, &value), 0);
	return value;
}

/* Nothing else is polled; the alarm ends a wait for what never comes. */
static void until(uint64_t (*what)(struct ibv_comp_cntr *), struct ibv_comp_cntr *counter, uint64_t wanted)
{
	while (what(counter) < wanted)
		usleep(50);
	EQUAL(what(counter), wanted);
}

static void sides(struct side *a, struct side *b, enum ibv_qp_type type)
{
	struct ibv_context *context = open_first();
	*a = side_on(context);
	*b = side_on(context);
	make_qp(a, type);
	make_qp(b, type);
}

static void silently(struct side *s, struct side *peer, enum ibv_wr_opcode opcode, uint32_t length)
{
	struct ibv_sge sge = part(s, 0, length);
	struct ibv_send_wr wr = send_of(&sge, opcode);
	wr.send_flags = 0;
	remote(&wr, peer, 4096);
	EQUAL(post(s, &wr), 0);
}

static void compared_and_added(struct side *a, struct side *b)
{
	struct ibv_sge sge = part(a, 0, 8);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_ATOMIC_FETCH_AND_ADD);
	wr.send_flags = 0;
	wr.wr.atomic.remote_addr = (uintptr_t)b->memory;
	wr.wr.atomic.rkey = b->mr->rkey;
	EQUAL(post(a, &wr), 0);
}

static void by_operation(void)
{
	struct side a, b;
	sides(&a, &b, IBV_QPT_RC);
	struct ibv_comp_cntr *of_a[6], *of_b[6];
	for (int i = 0; i < 6; i++) {
		of_a[i] = attached(&a, WRS, 1 << i);
		of_b[i] = attached(&b, WRS, 1 << i);
	}
	connect_to(&a, &b);
	connect_to(&b, &a);
	for (int i = 0; i < 5; i++)
		EQUAL(post_recv(&b, i, 0, 64), 0);
	compared_and_added(&a, &b);
	for (int i = 0; i < 3; i++)
		silently(&a, &b, IBV_WR_SEND, 8);
	for (int i = 0; i < 2; i++)
		silently(&a, &b, IBV_WR_RDMA_WRITE, 5000);
	silently(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 8);
	silently(&a, &b, IBV_WR_SEND_WITH_IMM, 0);
	for (int i = 0; i < 4; i++)
		silently(&a, &b, IBV_WR_RDMA_READ, 5000);
	static const unsigned at_a[6] = { 4, 0, 4, 0, 3, 0 }, at_b[6] = { 0, 5, 0, 4, 0, 3 };
	for (int i = 0; i < 6; i++) {
		until(value, of_a[i], at_a[i]);
		until(value, of_b[i], at_b[i]);
	}
	/* The other way, visibly: counted before the completion is there. */
	struct ibv_sge sge = part(&b, 0, 8);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	remote(&wr, &a, 4096);
	EQUAL(post(&b, &wr), 0);
	for (int i = 0; i < 5; i++)
		expect(b.cq, i, IBV_WC_SUCCESS);
	expect(b.cq, 1, IBV_WC_SUCCESS);
	EQUAL(value(of_b[4]), 1);
	EQUAL(value(of_a[5]), 1);
	for (int i = 0; i < 6; i++)
		EQUAL(errors(of_a[i]) + errors(of_b[i]), 0);
}
BY_WIRE(by_operation)

static void by_bytes(void)
{
	struct side a, b;
	sides(&a, &b, IBV_QPT_RC);
	struct ibv_comp_cntr *sent = attached(&a, BYTES, SEND | WRITE), *read = attached(&a, BYTES, READ);
	struct ibv_comp_cntr *received = attached(&b, BYTES, RECV), *theirs = attached(&b, BYTES, REMOTE_READ | REMOTE_WRITE);
	connect_to(&a, &b);
	connect_to(&b, &a);
	EQUAL(post_recv(&b, 1, 0, 4096), 0);
	EQUAL(post_recv(&b, 2, 0, 4096), 0);
	silently(&a, &b, IBV_WR_SEND, 3000);
	silently(&a, &b, IBV_WR_RDMA_WRITE, 100000);
	silently(&a, &b, IBV_WR_RDMA_WRITE_WITH_IMM, 50);
	silently(&a, &b, IBV_WR_RDMA_READ, 70001);
	until(value, read, 70001);
	until(value, sent, 3000 + 100000 + 50);
	until(value, received, 3000 + 50);
	until(value, theirs, 100000 + 50 + 70001);
}
BY_WIRE(by_bytes)

static void errors_and_flushes(void)
{
	struct side a, b;
	sides(&a, &b, IBV_QPT_RC);
	struct ibv_comp_cntr *writes = attached(&a, WRS, WRITE), *sends = attached(&a, BYTES, SEND), *reads = attached(&a, WRS, READ);
	struct ibv_comp_cntr *receives = attached(&b, WRS, RECV), *theirs = attached(&b, BYTES, REMOTE_WRITE);
	connect_to(&a, &b);
	connect_to(&b, &a);
	EQUAL(post_recv(&b, 1, 0, 4096), 0);
	EQUAL(post_recv(&b, 2, 0, 4096), 0);
	silently(&a, &b, IBV_WR_RDMA_WRITE, 8);
	until(value, writes, 1);
	struct ibv_sge sge = part(&a, 0, 8);
	struct ibv_send_wr send = send_of(&sge, IBV_WR_SEND), read = send_of(&sge, IBV_WR_RDMA_READ);
	struct ibv_send_wr wrong = send_of(&sge, IBV_WR_RDMA_WRITE);
	remote(&wrong, &b, 0);
	remote(&read, &b, 0);
	wrong.wr.rdma.rkey ^= 0x5500;
	wrong.next = &send;
	send.next = &read;
	EQUAL(post(&a, &wrong), 0);
	until(errors, writes, 1);
	until(errors, sends, 1);
	until(errors, reads, 1);
	until(errors, receives, 2);
	until(errors, theirs, 1);
	EQUAL(value(writes), 1);
	EQUAL(value(theirs), 8);
	EQUAL(value(sends) + value(reads) + value(receives), 0);
	EQUAL(expect(a.cq, 1, IBV_WC_REM_ACCESS_ERR).qp_num, a.qp->qp_num);
	/* What is posted now is flushed, too. */
	send.next = NULL;
	EQUAL(post(&a, &send), 0);
	until(errors, sends, 2);
}
BY_WIRE(errors_and_flushes)

static void reads_refused(void)
{
	struct side a, b;
	sides(&a, &b, IBV_QPT_RC);
	struct ibv_comp_cntr *ours = attached(&a, WRS, READ), *theirs = attached(&b, WRS, REMOTE_READ);
	connect_to(&a, &b);
	connect_to(&b, &a);
	struct ibv_sge sge = part(&a, 0, 8);
	struct ibv_send_wr read = send_of(&sge, IBV_WR_RDMA_READ);
	remote(&read, &b, MEMORY);
	EQUAL(post(&a, &read), 0);
	until(errors, ours, 1);
	until(errors, theirs, 1);
	EQUAL(value(ours) + value(theirs), 0);
}
BY_WIRE(reads_refused)

/* Neither completions nor a CQ that is polled. */
static void instead_of_completions(void)
{
	enum { MANY = 2000 };
	struct side a, b;
	sides(&a, &b, IBV_QPT_RC);
	struct ibv_comp_cntr *writes = attached(&a, WRS, WRITE);
	connect_to(&a, &b);
	connect_to(&b, &a);
	struct ibv_sge sge = part(&a, 0, 64);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	wr.send_flags = 0;
	remote(&wr, &b, 0);
	for (int i = 0; i < MANY; i++) {
		int failed;
		while ((failed = post(&a, &wr)) == ENOMEM)
			CHECK(value(writes) + 16 >= (uint64_t)i);
		EQUAL(failed, 0);
	}
	until(value, writes, MANY);
	/* A completion that is there keeps its place until it is read. */
	wr.send_flags = IBV_SEND_SIGNALED;
	for (int i = 0; i < 16; i++)
		EQUAL(post(&a, &wr), 0);
	until(value, writes, MANY + 16);
	EQUAL(post(&a, &wr), ENOMEM);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	EQUAL(post(&a, &wr), 0);
	EQUAL(post(&a, &wr), ENOMEM);
}
BY_WIRE(instead_of_completions)

static void who_is_attached(void)
{
	struct side a, b;
	sides(&a, &b, IBV_QPT_RC);
	struct ibv_comp_cntr *shared = attached(&a, WRS, SEND | RECV), *other = counter_of(a.context, WRS);
	EQUAL(attach(b.qp, shared, SEND | RECV), 0);
	EQUAL(attach(a.qp, other, RECV | WRITE), EBUSY);
	EQUAL(attach(a.qp, shared, SEND), EBUSY);
	/* Which left WRITE as it was. */
	EQUAL(ibv_destroy_comp_cntr(other), 0);
	struct ibv_comp_cntr *writes = attached(&a, WRS, WRITE);
	EQUAL(to_init(a.qp), 0);
	EQUAL(attach(a.qp, shared, READ), 0);
	connect_to(&b, &a);
	EQUAL(to_state(a.qp, IBV_QPS_RESET), 0);
	connect_to(&a, &b);
	EQUAL(attach(a.qp, writes, REMOTE_WRITE), EINVAL);
	EQUAL(post_recv(&a, 1, 0, 64), 0);
	EQUAL(post_recv(&b, 1, 0, 64), 0);
	silently(&a, &b, IBV_WR_SEND, 8);
	silently(&b, &a, IBV_WR_SEND, 8);
	until(value, shared, 4);
	EQUAL(value(writes), 0);
	/* It counts on after RESET. */
	EQUAL(to_state(a.qp, IBV_QPS_RESET), 0);
	EQUAL(to_state(b.qp, IBV_QPS_RESET), 0);
	connect_to(&a, &b);
	connect_to(&b, &a);
	EQUAL(post_recv(&b, 1, 0, 64), 0);
	silently(&a, &b, IBV_WR_SEND, 8);
	until(value, shared, 6);
	EQUAL(ibv_destroy_comp_cntr(shared), EBUSY);
	EQUAL(ibv_destroy_qp(a.qp), 0);
	EQUAL(ibv_destroy_comp_cntr(writes), 0);
	EQUAL(ibv_destroy_comp_cntr(shared), EBUSY);
	EQUAL(value(shared), 6);
	EQUAL(ibv_destroy_qp(b.qp), 0);
	EQUAL(ibv_destroy_comp_cntr(shared), 0);
	EQUAL(ibv_destroy_comp_cntr(shared), ENOENT);
	/* A context closes with what is left in it. */
	make_qp(&a, IBV_QPT_UD);
	attached(&a, WRS, SEND);
	EQUAL(ibv_close_device(a.context), 0);
}

static void datagrams(void)
{
	struct side a, b;
	sides(&a, &b, IBV_QPT_UD);
	struct ibv_comp_cntr *sent = attached(&a, BYTES, ALL), *received = attached(&b, BYTES, ALL);
	ready_datagrams(a.qp);
	ready_datagrams(b.qp);
	EQUAL(post_recv(&b, 1, 0, 512), 0);
	struct ibv_ah_attr to = address(&b);
	struct ibv_ah *ah = ibv_create_ah(a.pd, &to);
	CHECK(ah);
	struct ibv_sge sge = part(&a, 0, 100);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = b.qp->qp_num;
	wr.wr.ud.remote_qkey = 0x1234;
	wr.send_flags = 0;
	EQUAL(post(&a, &wr), 0);
	until(value, sent, 100);
	/* With the room of its global routing header, as a completion has it. */
	until(value, received, 140);
}

static void unreliable_and_shared(void)
{
	struct side a, b;
	sides(&a, &b, IBV_QPT_UC);
	struct ibv_comp_cntr *sent = attached(&a, WRS, SEND | WRITE), *received = attached(&b, WRS, RECV);
	struct ibv_comp_cntr *written = attached(&b, WRS, REMOTE_WRITE);
	connect_to(&a, &b);
	connect_to(&b, &a);
	EQUAL(post_recv(&b, 1, 0, 512), 0);
	silently(&a, &b, IBV_WR_SEND, 100);
	silently(&a, &b, IBV_WR_RDMA_WRITE, 3000);
	until(value, sent, 2);
	until(value, received, 1);
	until(value, written, 1);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	b.srq = ibv_create_srq(b.pd, &shared);
	CHECK(b.srq);
	make_qp(&a, IBV_QPT_RC);
	make_qp(&b, IBV_QPT_RC);
	received = attached(&b, WRS, RECV);
	connect_to(&a, &b);
	connect_to(&b, &a);
	struct ibv_sge sge = part(&b, 0, 64);
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;
	EQUAL(ibv_post_srq_recv(b.srq, &wr, &bad), 0);
	silently(&a, &b, IBV_WR_SEND, 10);
	until(value, received, 1);
}

/* What another process does to this one's memory. */
struct card {
	union ibv_gid gid;
	uint32_t qpn, rkey;
	uint64_t addr;
};

static void swap_cards(struct side *s, int out, int in, struct card *theirs)
{
	struct card ours = { s->gid, s->qp->qp_num, s->mr->rkey, (uintptr_t)s->memory };
	EQUAL(write(out, &ours, sizeof ours), sizeof ours);
	EQUAL(read(in, theirs, sizeof *theirs), sizeof *theirs);
	EQUAL(to_init(s->qp), 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = theirs->qpn,
		.rq_psn = 100, .max_dest_rd_atomic = 4, .min_rnr_timer = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = theirs->gid, .hop_limit = 64 } } };
	EQUAL(ibv_modify_qp(s->qp, &attr, RTR_RC), 0);
	attr = rts_attr();
	EQUAL(ibv_modify_qp(s->qp, &attr, RTS_RC), 0);
	/* Both are ready before anything is sent. */
	EQUAL(write(out, "r", 1), 1);
	char ready;
	EQUAL(read(in, &ready, 1), 1);
}

enum { WRITES = 300, READS = 200 };

static int initiator(int out, int in)
{
	struct side s = side_on(open_first());
	make_qp(&s, IBV_QPT_RC);
	struct ibv_comp_cntr *all = attached(&s, WRS, WRITE | READ);
	struct card peer;
	swap_cards(&s, out, in, &peer);
	struct ibv_sge sge = part(&s, 0, 256);
	for (int i = 0; i < WRITES + READS; i++) {
		struct ibv_send_wr wr = send_of(&sge, i < WRITES ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ);
		wr.send_flags = 0;
		wr.wr.rdma.remote_addr = peer.addr;
		wr.wr.rdma.rkey = peer.rkey;
		int failed;
		while ((failed = post(&s, &wr)) == ENOMEM)
			value(all);
		EQUAL(failed, 0);
	}
	until(value, all, WRITES + READS);
	char done;
	EQUAL(read(in, &done, 1), 1);
	return 0;
}

static void *reader(void *counter)
{
	uint64_t before = 0, now;
	while ((now = value(counter)) < WRITES) {
		CHECK(now >= before);
		before = now;
	}
	return NULL;
}

static void of_another_process(void)
{
	int there[2], back[2];
	EQUAL(pipe(there) | pipe(back), 0);
	pid_t child = fork();
	if (!child)
		_exit(initiator(there[1], back[0]));
	struct side s = side_on(open_first());
	make_qp(&s, IBV_QPT_RC);
	struct ibv_comp_cntr *writes = attached(&s, WRS, REMOTE_WRITE), *reads = attached(&s, WRS, REMOTE_READ);
	pthread_t thread;
	EQUAL(pthread_create(&thread, NULL, reader, writes), 0);
	struct card peer;
	swap_cards(&s, back[1], there[0], &peer);
	until(value, writes, WRITES);
	until(value, reads, READS);
	EQUAL(pthread_join(thread, NULL), 0);
	EQUAL(write(back[1], "d", 1), 1);
	int status;
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
	EQUAL(errors(writes) + errors(reads), 0);
}
BY_WIRE(of_another_process)

static void values(void)
{
	struct ibv_context *context = open_first();
	struct ibv_comp_cntr *counter = counter_of(context, BYTES);
	EQUAL(value(counter) + errors(counter), 0);
	EQUAL(ibv_set_comp_cntr(counter, 40), 0);
	EQUAL(ibv_inc_comp_cntr(counter, 2), 0);
	EQUAL(ibv_inc_err_comp_cntr(counter, 7), 0);
	EQUAL(value(counter), 42);
	EQUAL(errors(counter), 7);
	EQUAL(ibv_set_err_comp_cntr(counter, UINT64_MAX), 0);
	EQUAL(ibv_inc_err_comp_cntr(counter, 1), 0);
	EQUAL(errors(counter), 0);
	EQUAL(value(counter), 42);
	EQUAL(ibv_destroy_comp_cntr(counter), 0);
}

static void asked_wrongly(void)
{
	struct side s = side_on(open_first());
	make_qp(&s, IBV_QPT_RC);
	struct { struct ibv_comp_cntr_caps caps; uint64_t more, behind; } room;
	memset(&room, 0xa5, sizeof room);
	EQUAL(_ibv_query_comp_cntr_caps(s.context, &room.caps, sizeof room.caps + 8), 0);
	CHECK(room.caps.max_value == UINT64_MAX && room.caps.max_counters >= 1024);
	EQUAL(room.caps.supported_qp_attach_ops, ALL);
	CHECK(!room.more && room.behind == 0xa5a5a5a5a5a5a5a5);
	memset(&room, 0xa5, sizeof room);
	EQUAL(_ibv_query_comp_cntr_caps(s.context, &room.caps, 8), 0);
	CHECK(room.caps.max_value == UINT64_MAX && room.caps.max_counters == 0xa5a5a5a5);
	EQUAL(_ibv_query_comp_cntr_caps(s.context, NULL, 16), EINVAL);
	EQUAL(_ibv_query_comp_cntr_caps(NULL, &room.caps, 16), EINVAL);
	static const struct { struct ibv_comp_cntr_init_attr attr; int code; } wrong[] = {
		{ { .comp_mask = 1 }, EOPNOTSUPP }, { { .type = 2 }, EINVAL }, { { .type = -1 }, EINVAL }, { { .flags = 1 }, EINVAL },
	};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct ibv_comp_cntr_init_attr attr = wrong[i].attr;
		errno = 0;
		CHECK(!ibv_create_comp_cntr(s.context, &attr));
		EQUAL(errno, wrong[i].code);
	}
	struct ibv_comp_cntr_init_attr attr = { 0 };
	CHECK(!ibv_create_comp_cntr(s.context, NULL) && errno == EINVAL);
	CHECK(!ibv_create_comp_cntr(NULL, &attr) && errno == EINVAL);
	struct ibv_comp_cntr *counter = counter_of(s.context, WRS), copy = *counter;
	uint64_t number = 5;
	EQUAL(ibv_read_comp_cntr(counter, NULL), EINVAL);
	EQUAL(ibv_read_err_comp_cntr(counter, NULL), EINVAL);
	EQUAL(ibv_read_comp_cntr(NULL, &number), EINVAL);
	EQUAL(ibv_read_err_comp_cntr(&copy, &number), ENOENT);
	EQUAL(number, 5);
	EQUAL(ibv_set_comp_cntr(NULL, 1), EINVAL);
	EQUAL(ibv_set_err_comp_cntr(&copy, 1), ENOENT);
	EQUAL(ibv_inc_comp_cntr(&copy, 1), ENOENT);
	EQUAL(ibv_inc_err_comp_cntr(NULL, 1), EINVAL);
	EQUAL(ibv_destroy_comp_cntr(NULL), EINVAL);
	EQUAL(ibv_destroy_comp_cntr(&copy), ENOENT);
	EQUAL(value(counter) + errors(counter), 0);
	EQUAL(attach(NULL, counter, SEND), EINVAL);
	EQUAL(attach(s.qp, NULL, SEND), EINVAL);
	EQUAL(attach(s.qp, &copy, SEND), ENOENT);
	EQUAL(ibv_qp_attach_comp_cntr(s.qp, counter, NULL), EINVAL);
	EQUAL(attach(s.qp, counter, 0), EINVAL);
	EQUAL(attach(s.qp, counter, SEND | (ALL + 1)), EOPNOTSUPP);
	struct ibv_qp_attach_comp_cntr_attr masked = { .comp_mask = 1, .op_mask = SEND };
	EQUAL(ibv_qp_attach_comp_cntr(s.qp, counter, &masked), EOPNOTSUPP);
	struct ibv_context *other = open_first();
	EQUAL(attach(s.qp, counter_of(other, WRS), SEND), EINVAL);
	/* None of which attached anything. */
	EQUAL(attach(s.qp, counter, ALL), 0);
	struct ibv_qp_init_attr raw = qp_init(&s, IBV_QPT_RAW_PACKET);
	struct ibv_qp *qp = ibv_create_qp(s.pd, &raw);
	if (qp)
		EQUAL(attach(qp, counter, SEND), EOPNOTSUPP);
	errno = 0;
	EQUAL(ibv_export_buf_dmabuf_fd(NULL), -1);
	EQUAL(errno, EINVAL);
	struct ibv_buf *(*alloc)(struct ibv_pd *, size_t, void **) = dlvsym(RTLD_DEFAULT, "ibv_alloc_buf", "IBVERBS_1.17");
	void *buf;
	CHECK(alloc && alloc(s.pd, 4096, &buf));
	EQUAL(ibv_export_buf_dmabuf_fd(buf), -1);
	EQUAL(errno, ENODATA);
	/* There can be so many. */
	uint32_t made = 0;
	while (ibv_create_comp_cntr(s.context, &attr))
		made++;
	EQUAL(errno, ENOMEM);
	EQUAL(_ibv_query_comp_cntr_caps(s.context, &room.caps, sizeof room.caps), 0);
	EQUAL(made + 2, room.caps.max_counters);
}

static const struct test tests[] = {
	TEST(by_operation),
	TEST(by_operation_by_wire),
	TEST(by_bytes),
	TEST(by_bytes_by_wire),
	TEST(errors_and_flushes),
	TEST(errors_and_flushes_by_wire),
	TEST(reads_refused),
	TEST(reads_refused_by_wire),
	TEST(instead_of_completions),
	TEST(instead_of_completions_by_wire),
	TEST(who_is_attached),
	TEST(datagrams),
	TEST(unreliable_and_shared),
	TEST(of_another_process),
	TEST(of_another_process_by_wire),
	TEST(values),
	TEST(asked_wrongly),
};
MAIN(tests)
