/* What the test programs share: checks, a device, queue pairs connected to each other. */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>

#define CHECK(condition) do { if (!(condition)) fail(__FILE__, __LINE__, #condition); } while (0)
#define EQUAL(is, should) do { \
	long long is_ = (long long)(is), should_ = (long long)(should); \
	if (is_ != should_) { \
		fprintf(stderr, "%s is %lld, should be %lld\n", #is, is_, should_); \
		fail(__FILE__, __LINE__, #is " == " #should); \
	} } while (0)

static inline void fail(const char *file, int line, const char *what)
{
	fprintf(stderr, "%s:%d: %s (errno %d)\n", file, line, what, errno);
	exit(1);
}

struct test {
	const char *name;
	void (*run)(void);
};

#define TEST(name) { #name, name }

static inline int run_tests(int argc, char **argv, const struct test *tests, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		if (argc == 2 && !strcmp(argv[1], "--list"))
			puts(tests[i].name);
		if (argc == 2 && !strcmp(argv[1], tests[i].name)) {
			/* The watchdog of everything that can hang. */
			alarm(120);
			tests[i].run();
			return 0;
		}
	}
	return argc == 2 && !strcmp(argv[1], "--list") ? 0 : 2;
}

#define MAIN(tests) \
	int main(int argc, char **argv) \
	{ return run_tests(argc, argv, tests, sizeof(tests) / sizeof(tests[0])); }

static inline struct ibv_context *open_first(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n > 0);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

/* One side of a connection, and what it stands on. */
struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory;
	union ibv_gid gid;
};

enum { MEMORY = 1 << 20 };

#define ALL_ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
		    IBV_ACCESS_REMOTE_ATOMIC)

static inline struct ibv_qp_init_attr qp_init(struct side *s, enum ibv_qp_type type)
{
	return (struct ibv_qp_init_attr){
		.qp_context = s, .send_cq = s->cq, .recv_cq = s->cq, .srq = s->srq, .qp_type = type,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4,
			 .max_inline_data = 256 },
	};
}

static inline struct side side_on(struct ibv_context *context)
{
	struct side s = { .context = context };
	s.pd = ibv_alloc_pd(context);
	CHECK(s.pd);
	s.cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	CHECK(s.cq);
	s.memory = aligned_alloc(4096, MEMORY);
	CHECK(s.memory);
	memset(s.memory, 0, MEMORY);
	s.mr = ibv_reg_mr(s.pd, s.memory, MEMORY, ALL_ACCESS);
	CHECK(s.mr);
	EQUAL(ibv_query_gid(context, 1, 0, &s.gid), 0);
	return s;
}

static inline void make_qp(struct side *s, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = qp_init(s, type);
	s->qp = ibv_create_qp(s->pd, &init);
	CHECK(s->qp);
}

static inline int to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
		(qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

static inline struct ibv_ah_attr address(const struct side *of)
{
	return (struct ibv_ah_attr){ .is_global = 1, .port_num = 1,
		.grh = { .dgid = of->gid, .hop_limit = 64 } };
}

static inline struct ibv_qp_attr rtr_attr(struct side *peer)
{
	return (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp->qp_num, .rq_psn = 100, .max_dest_rd_atomic = 4,
		.min_rnr_timer = 1, .ah_attr = address(peer) };
}

enum {
	RTR_UC = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
	RTR_RC = RTR_UC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	RTS_UC = IBV_QP_STATE | IBV_QP_SQ_PSN,
	RTS_RC = RTS_UC | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT,
};

static inline struct ibv_qp_attr rts_attr(void)
{
	return (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 100, .max_rd_atomic = 4,
		.retry_cnt = 3, .rnr_retry = 7, .timeout = 12 };
}

static inline void connect_to(struct side *s, struct side *peer)
{
	EQUAL(to_init(s->qp), 0);
	struct ibv_qp_attr attr = rtr_attr(peer);
	bool rc = s->qp->qp_type == IBV_QPT_RC;
	EQUAL(ibv_modify_qp(s->qp, &attr, rc ? RTR_RC : RTR_UC), 0);
	attr = rts_attr();
	EQUAL(ibv_modify_qp(s->qp, &attr, rc ? RTS_RC : RTS_UC), 0);
}

static inline void ready_datagrams(struct ibv_qp *qp)
{
	EQUAL(to_init(qp), 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = 7 };
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
}

/* Two connected queue pairs on one context. */
static inline void pair(struct side *a, struct side *b, enum ibv_qp_type type)
{
	struct ibv_context *context = open_first();
	*a = side_on(context);
	*b = side_on(context);
	make_qp(a, type);
	make_qp(b, type);
	connect_to(a, b);
	connect_to(b, a);
}

static inline int to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

static inline struct ibv_sge part(struct side *s, size_t offset, uint32_t length)
{
	return (struct ibv_sge){ .addr = (uintptr_t)s->memory + offset, .length = length, .lkey = s->mr->lkey };
}

static inline int post_recv(struct side *s, uint64_t id, size_t offset, uint32_t length)
{
	struct ibv_sge sge = part(s, offset, length);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	return ibv_post_recv(s->qp, &wr, &bad);
}

static inline struct ibv_send_wr send_of(struct ibv_sge *sge, enum ibv_wr_opcode opcode)
{
	return (struct ibv_send_wr){ .wr_id = 1, .sg_list = sge, .num_sge = sge ? 1 : 0, .opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED };
}

static inline void remote(struct ibv_send_wr *wr, struct side *peer, size_t offset)
{
	wr->wr.rdma.remote_addr = (uintptr_t)peer->memory + offset;
	wr->wr.rdma.rkey = peer->mr->rkey;
}

static inline int post(struct side *s, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	return ibv_post_send(s->qp, wr, &bad);
}

static inline void pause_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
	nanosleep(&t, NULL);
}

/* The next completion; the alarm ends a wait for one that never comes. */
static inline struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	for (;;) {
		memset(&wc, 0xa5, sizeof wc);
		int n = ibv_poll_cq(cq, 1, &wc);
		CHECK(n >= 0);
		if (n == 1)
			return wc;
		usleep(50);
	}
}

static inline struct ibv_wc expect(struct ibv_cq *cq, uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc = completion(cq);
	EQUAL(wc.status, status);
	EQUAL(wc.wr_id, id);
	return wc;
}

/* Nothing comes in a time in which everything on this machine would have. */
/* Sends 64 bytes from the start of one side's memory to that of its peer. */
static inline void one_message(struct side *from, struct side *to)
{
	EQUAL(post_recv(to, 2, 0, 64), 0);
	struct ibv_sge sge = part(from, 0, 64);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	EQUAL(post(from, &wr), 0);
	expect(from->cq, 1, IBV_WC_SUCCESS);
	expect(to->cq, 2, IBV_WC_SUCCESS);
}

static inline void expect_none(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	for (int i = 0; i < 100; i++) {
		EQUAL(ibv_poll_cq(cq, 1, &wc), 0);
		usleep(500);
	}
}
