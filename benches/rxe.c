/*
 * What a libibverbs costs on a device of the kernel, in instructions of the program: for callgrind, which counts what
 * `measured` calls. Operations on a reliable connection of two queue pairs of this process; each completion is waited for
 * asleep, so that no poll is in vain. Those that were all the same are told.
 *
 *   rxe -d DEVICE -g GID-INDEX OPERATION ROUNDS
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER = 1 << 16, LIST = 16 };
enum kind { SEND, WRITE, INLINE, LISTS, RECEIVE, BUILDER, EXTENDED, KINDS };
static const char *const names[KINDS] = {"send", "write", "inline", "list", "receive", "builder", "extended"};

static struct ibv_qp *qp[2];
static struct ibv_cq *cq[2];
static struct ibv_mr *mr;
static uint8_t *memory;
static struct ibv_send_wr wr[LIST], *bad;
static struct ibv_recv_wr receive, *bad_receive;
static struct ibv_sge sge, into;
static struct ibv_wc wc[LIST];
static unsigned in_vain;

static void need(int good, const char *what)
{
    if (good) return;
    perror(what);
    exit(1);
}

enum act { POST, TAKE };

/* The one place that is counted. */
__attribute__((noinline)) int measured(enum kind kind, enum act act)
{
    if (act == TAKE) {
        if (kind != EXTENDED) return ibv_poll_cq(cq[0], LIST, wc);
        struct ibv_cq_ex *ex = (struct ibv_cq_ex *)cq[0];
        struct ibv_poll_cq_attr attr = {0};
        if (ibv_start_poll(ex, &attr)) return 0;
        wc[0].wr_id = ex->wr_id, wc[0].status = ex->status, wc[0].opcode = ibv_wc_read_opcode(ex);
        ibv_end_poll(ex);
        return 1;
    }
    if (kind == RECEIVE) return ibv_post_recv(qp[1], &receive, &bad_receive);
    if (kind != BUILDER && kind != EXTENDED) return ibv_post_send(qp[0], wr, &bad);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp[0]);
    ibv_wr_start(ex);
    ex->wr_id = 1, ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory + BUFFER);
    ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 8);
    return ibv_wr_complete(ex);
}

int main(int argc, char **argv)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    const char *device = "";
    int gid_index = 0, kind = 0;
    for (int option; (option = getopt(argc, argv, "d:g:")) != -1;)
        if (option == 'd') device = optarg;
        else gid_index = atoi(optarg);
    if (optind + 2 != argc) return 64;
    while (kind < KINDS && strcmp(names[kind], argv[optind])) kind++;
    int rounds = atoi(argv[optind + 1]);
    while (*list && strcmp(ibv_get_device_name(*list), device)) list++;
    need(*list && kind < KINDS, "device or operation");
    struct ibv_context *context = ibv_open_device(*list);
    need(!!context, "open");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    need(!posix_memalign((void **)&memory, 4096, 2 * BUFFER), "memory");
    need(!!(mr = ibv_reg_mr(pd, memory, 2 * BUFFER, 7)), "region");
    union ibv_gid gid;
    need(!ibv_query_gid(context, 1, gid_index, &gid), "GID");
    for (int i = 0; i < 2; i++) {
        struct ibv_cq_init_attr_ex queue = {.cqe = 64};
        cq[i] = kind == EXTENDED ? (struct ibv_cq *)ibv_create_cq_ex(context, &queue) : ibv_create_cq(context, 64, NULL, NULL, 0);
        struct ibv_qp_init_attr_ex attr = {.send_cq = cq[i], .recv_cq = cq[i], .qp_type = IBV_QPT_RC, .cap = {32, 32, 2, 2, 64}, .pd = pd,
            .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE};
        need(cq[i] && (qp[i] = ibv_create_qp_ex(context, &attr)), "queues");
    }
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = 7, .path_mtu = IBV_MTU_1024, .timeout = 14,
            .retry_cnt = 7, .rnr_retry = 7, .dest_qp_num = qp[!i]->qp_num, .min_rnr_timer = 1, .max_rd_atomic = 1, .max_dest_rd_atomic = 1,
            .ah_attr = {.port_num = 1, .is_global = 1, .grh = {.dgid = gid, .sgid_index = gid_index, .hop_limit = 64}}};
        need(!ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
        a.qp_state = IBV_QPS_RTR;
        need(!ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
        a.qp_state = IBV_QPS_RTS;
        need(!ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
            IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
    }
    sge = (struct ibv_sge){(uintptr_t)memory, 8, mr->lkey}, into = (struct ibv_sge){(uintptr_t)memory + BUFFER, 64, mr->lkey};
    receive = (struct ibv_recv_wr){.wr_id = 2, .sg_list = &into, .num_sge = 1};
    int receives = kind == SEND || kind == RECEIVE;
    for (int i = 0; i < LIST; i++)
        wr[i] = (struct ibv_send_wr){.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = receives ? IBV_WR_SEND : IBV_WR_RDMA_WRITE,
            .wr.rdma = {(uintptr_t)memory + BUFFER, mr->rkey}, .next = kind == LISTS && i < LIST - 1 ? &wr[i + 1] : NULL,
            .send_flags = IBV_SEND_SIGNALED | (kind == INLINE ? IBV_SEND_INLINE : 0)};
    int each = kind == LISTS ? LIST : 1;
    for (int i = 0; i < rounds; i++) {
        if (kind == SEND) need(!ibv_post_recv(qp[1], &receive, &bad_receive), "receive");
        need(!measured(kind, POST), "post");
        if (kind == RECEIVE) need(!ibv_post_send(qp[0], wr, &bad), "send");
        for (int got = 0; got < each;) {
            usleep(3000);
            int n = kind == RECEIVE ? ibv_poll_cq(cq[0], LIST, wc) : measured(kind, TAKE);
            need(n >= 0 && (!n || !wc[0].status), "completion");
            if (!n) in_vain++;
            got += n;
        }
        if (receives)
            while (ibv_poll_cq(cq[1], LIST, wc) == 0) usleep(1000);
    }
    printf("%d rounds, %u polls in vain\n", rounds, in_vain);
    return 0;
}
