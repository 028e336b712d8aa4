/* The two ways to post and the two ways to poll, by turns, in one process: WRITEs of 8 bytes between two RC queue pairs, BATCH
 * at a time. Times are of this thread's processor, per request. Printed: one line a round. `interfaces TURNS` is one round of
 * so many turns, for the instructions of the functions marked MEASURED to be counted. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 64, TURNS = 400, ROUNDS = 7 };

#define MUST(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

#define MEASURED __attribute__((noipa)) static

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char memory[4096];

static struct ibv_qp *make_qp(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
		.cap = { .max_send_wr = BATCH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 16 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	MUST(qp);
	return qp;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	union ibv_gid gid;
	MUST(!ibv_query_gid(context, 1, 0, &gid));
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	MUST(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } } };
	MUST(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .max_rd_atomic = 1, .retry_cnt = 7, .rnr_retry = 7, .timeout = 14 };
	MUST(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT |
			    IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT));
}

static uint32_t rkey;

MEASURED void post_classic(struct ibv_qp *qp)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)memory + 64, rkey } }, *bad;
	for (int i = 0; i < BATCH; i++)
		MUST(!ibv_post_send(qp, &wr, &bad));
}

MEASURED void post_built(struct ibv_qp *qp)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	for (int i = 0; i < BATCH; i++) {
		ibv_wr_start(ex);
		ex->wr_id = 0;
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(ex, rkey, (uintptr_t)memory + 64);
		ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 8);
		MUST(!ibv_wr_complete(ex));
	}
}

MEASURED void poll_classic(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	for (int i = 0; i < BATCH;) {
		int n = ibv_poll_cq(cq, 1, &wc);
		MUST(n >= 0 && (!n || !wc.status));
		i += n;
	}
}

/* One completion for each start, as by ibv_poll_cq of one. */
MEASURED void poll_started(struct ibv_cq *cq)
{
	struct ibv_cq_ex *ex = (struct ibv_cq_ex *)cq;
	struct ibv_poll_cq_attr attr = { 0 };
	for (int i = 0; i < BATCH;) {
		if (ibv_start_poll(ex, &attr))
			continue;
		MUST(!ex->status);
		i++;
		ibv_end_poll(ex);
	}
}

MEASURED void poll_many_classic(struct ibv_cq *cq)
{
	struct ibv_wc wc[BATCH];
	for (int i = 0; i < BATCH;) {
		int n = ibv_poll_cq(cq, BATCH, wc);
		MUST(n >= 0);
		for (int j = 0; j < n; j++)
			MUST(!wc[j].status);
		i += n;
	}
}

/* All there is after one start. */
MEASURED void poll_many_started(struct ibv_cq *cq)
{
	struct ibv_cq_ex *ex = (struct ibv_cq_ex *)cq;
	struct ibv_poll_cq_attr attr = { 0 };
	for (int i = 0; i < BATCH;) {
		if (ibv_start_poll(ex, &attr))
			continue;
		do {
			MUST(!ex->status);
			i++;
		} while (!ibv_next_poll(ex));
		ibv_end_poll(ex);
	}
}

int main(int argc, char **argv)
{
	int turns = argc > 1 ? atoi(argv[1]) : TURNS, rounds = argc > 1 ? 0 : ROUNDS;
	struct ibv_device **list = ibv_get_device_list(NULL);
	MUST(list && list[0] && (context = ibv_open_device(list[0])));
	MUST((pd = ibv_alloc_pd(context)));
	MUST((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	rkey = mr->rkey;
	struct ibv_cq *plain = ibv_create_cq(context, 4 * BATCH, NULL, NULL, 0);
	struct ibv_cq_init_attr_ex init = { .cqe = 4 * BATCH, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
	struct ibv_cq *extended = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &init));
	MUST(plain && extended);
	struct ibv_qp *qp[2] = { make_qp(plain), make_qp(extended) }, *peer[2] = { make_qp(plain), make_qp(plain) };
	for (int i = 0; i < 2; i++) {
		connect_to(qp[i], peer[i]);
		connect_to(peer[i], qp[i]);
	}
	for (int round = 0; round <= rounds; round++) {
		/* Posting and polling, classic and extended; polling of many. */
		double t[2][3] = { { 0 } };
		for (int turn = 0; turn < turns; turn++)
			for (int way = 0; way < 2; way++) {
				struct ibv_cq *cq = way ? extended : plain;
				for (int many = 0; many < 2; many++) {
					double a = now();
					(way ? post_built : post_classic)(qp[way]);
					double b = now();
					if (many)
						(way ? poll_many_started : poll_many_classic)(cq);
					else
						(way ? poll_started : poll_classic)(cq);
					double c = now();
					t[way][0] += (b - a) / 2;
					t[way][1 + many] += c - b;
				}
			}
		if (!round)
			continue;
		for (int i = 0; i < 3; i++)
			printf("%.1f %.1f%s", t[0][i] / turns / BATCH, t[1][i] / turns / BATCH, i < 2 ? " " : "\n");
	}
	return 0;
}
