/*
 * What a libibverbs costs on a device of the kernel, in instructions of the program: for callgrind, which counts what
 * `measured` calls and writes a part at each call of `mark`. Of each operation first the posting is counted, then the poll of
 * its completion, in rounds of one request; the queue pairs are this process's two. A completion is waited for asleep, so that
 * no poll is in vain; were one, it would be told.
 *
 *   rxe -d DEVICE -g GID-INDEX      prints a line `PART OPERATION-WHAT ROUNDS` per counted part
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER = 1 << 16, LIST = 16, WARM = 3, ROUNDS = 5, HEADER = 40 };
enum kind { SEND, WRITE, IMMEDIATE, READ, SWAP, ADD, INLINE, LISTS, DATAGRAM, RECEIVE, SHARED, BUILDER, EXTENDED, KINDS };
static const char *const names[KINDS] = {
    "send", "write", "write-imm", "read", "swap", "add", "inline", "list", "ud", "receive", "srq", "builder", "extended"};
enum act { POST, TAKE, ACTS };
static const char *const whats[ACTS] = {"post", "poll"};

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;
static int gid_index;
static struct ibv_qp *qp[2];
static struct ibv_qp_ex *extended;
static struct ibv_cq *cq[2];
static struct ibv_comp_channel *channel[2];
static struct ibv_srq *srq;
static struct ibv_ah *ah;
static struct ibv_mr *mr;
static uint8_t *memory;
static struct ibv_send_wr wr[LIST], *bad;
static struct ibv_recv_wr receive, *bad_receive;
static struct ibv_sge sge, into;
static struct ibv_wc wc[LIST];

static void need(int good, const char *what)
{
    if (good) return;
    perror(what);
    exit(1);
}

static int is_receive(enum kind kind) { return kind == RECEIVE || kind == SHARED; }

static inline __attribute__((always_inline)) int done(enum kind kind, enum act act)
{
    if (act == TAKE) {
        struct ibv_cq *from = cq[is_receive(kind)];
        if (kind != EXTENDED) return ibv_poll_cq(from, LIST, wc);
        struct ibv_cq_ex *ex = (struct ibv_cq_ex *)from;
        struct ibv_poll_cq_attr attr = {0};
        if (ibv_start_poll(ex, &attr)) return 0;
        wc[0].wr_id = ex->wr_id, wc[0].status = ex->status, wc[0].opcode = ibv_wc_read_opcode(ex);
        ibv_end_poll(ex);
        return 1;
    }
    if (kind == RECEIVE) return ibv_post_recv(qp[1], &receive, &bad_receive);
    if (kind == SHARED) return ibv_post_srq_recv(srq, &receive, &bad_receive);
    if (kind != BUILDER && kind != EXTENDED) return ibv_post_send(qp[0], wr, &bad);
    struct ibv_qp_ex *ex = extended;
    ibv_wr_start(ex);
    ex->wr_id = 1, ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)memory + BUFFER);
    ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)memory, 8);
    return ibv_wr_complete(ex);
}

/* The one place that is counted. */
__attribute__((noinline)) int measured(enum kind kind, enum act act) { return done(kind, act); }
__attribute__((noinline)) int unmeasured(enum kind kind, enum act act) { return done(kind, act); }
/* At whose calls a part ends. */
__attribute__((noinline)) void mark(void) { __asm__ volatile(""); }

static void connect_pair(enum kind kind)
{
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = 15, .qkey = 7, .path_mtu = IBV_MTU_1024,
            .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .dest_qp_num = qp[!i]->qp_num, .min_rnr_timer = 1, .max_rd_atomic = 1,
            .max_dest_rd_atomic = 1,
            .ah_attr = {.port_num = 1, .is_global = 1, .grh = {.dgid = gid, .sgid_index = gid_index, .hop_limit = 64}}};
        int unconnected = kind == DATAGRAM;
        need(!ibv_modify_qp(qp[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
            (unconnected ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)), "INIT");
        a.qp_state = IBV_QPS_RTR;
        need(!ibv_modify_qp(qp[i], &a, unconnected ? IBV_QP_STATE : IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
        a.qp_state = IBV_QPS_RTS;
        need(!ibv_modify_qp(qp[i], &a, unconnected ? IBV_QP_STATE | IBV_QP_SQ_PSN : IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
            IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
        if (unconnected && !i) need(!!(ah = ibv_create_ah(pd, &a.ah_attr)), "address handle");
    }
}

static void begin(enum kind kind)
{
    static const enum ibv_wr_opcode opcodes[KINDS] = {[SEND] = IBV_WR_SEND, [DATAGRAM] = IBV_WR_SEND, [RECEIVE] = IBV_WR_SEND,
        [SHARED] = IBV_WR_SEND, [IMMEDIATE] = IBV_WR_RDMA_WRITE_WITH_IMM, [READ] = IBV_WR_RDMA_READ,
        [SWAP] = IBV_WR_ATOMIC_CMP_AND_SWP, [ADD] = IBV_WR_ATOMIC_FETCH_AND_ADD};
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 32, .max_sge = 2}};
    if (kind == SHARED) need(!!(srq = ibv_create_srq(pd, &shared)), "shared queue");
    for (int i = 0; i < 2; i++) {
        need(!!(channel[i] = ibv_create_comp_channel(context)), "channel");
        struct ibv_cq_init_attr_ex queue = {.cqe = 64, .channel = channel[i]};
        cq[i] = kind == EXTENDED ? (struct ibv_cq *)ibv_create_cq_ex(context, &queue) : ibv_create_cq(context, 64, NULL, channel[i], 0);
        struct ibv_qp_init_attr_ex attr = {.send_cq = cq[i], .recv_cq = cq[i], .qp_type = kind == DATAGRAM ? IBV_QPT_UD : IBV_QPT_RC,
            .cap = {32, 32, 2, 2, 64}, .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD, .srq = i && kind == SHARED ? srq : NULL};
        if (kind == BUILDER || kind == EXTENDED)
            attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
        need(cq[i] && (qp[i] = ibv_create_qp_ex(context, &attr)), "queues");
    }
    extended = ibv_qp_to_qp_ex(qp[0]);
    connect_pair(kind);
    int length = 8;
    sge = (struct ibv_sge){(uintptr_t)memory, length, mr->lkey};
    into = (struct ibv_sge){(uintptr_t)memory + BUFFER, 64 + HEADER, mr->lkey};
    receive = (struct ibv_recv_wr){.wr_id = 2, .sg_list = &into, .num_sge = 1};
    for (int i = 0; i < LIST; i++) {
        wr[i] = (struct ibv_send_wr){.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = opcodes[kind],
            .wr.rdma = {(uintptr_t)memory + BUFFER, mr->rkey}, .next = kind == LISTS && i < LIST - 1 ? &wr[i + 1] : NULL,
            .send_flags = IBV_SEND_SIGNALED | (kind == INLINE ? IBV_SEND_INLINE : 0)};
        if (kind == SWAP || kind == ADD)
            wr[i].wr.atomic = (typeof(wr[i].wr.atomic)){.remote_addr = (uintptr_t)memory + BUFFER, .rkey = mr->rkey, .compare_add = 1};
        if (kind == DATAGRAM)
            wr[i].wr.ud = (typeof(wr[i].wr.ud)){.ah = ah, .remote_qpn = qp[1]->qp_num, .remote_qkey = 7};
    }
}

static void end(enum kind kind)
{
    for (int i = 0; i < 2; i++)
        need(!ibv_destroy_qp(qp[i]) && !ibv_destroy_cq(cq[i]) && !ibv_destroy_comp_channel(channel[i]), "end of queues");
    if (kind == SHARED) need(!ibv_destroy_srq(srq), "end of shared queue");
    if (kind == DATAGRAM) need(!ibv_destroy_ah(ah), "end of address handle");
}

static void await(int which)
{
    struct ibv_cq *of;
    void *own;
    need(!ibv_get_cq_event(channel[which], &of, &own), "event");
    ibv_ack_cq_events(of, 1);
}

static int by(int counted, enum kind kind, enum act act) { return counted ? measured(kind, act) : unmeasured(kind, act); }

/* One request from its posting to its completion; the number of polls that found less than there was to be found. */
static unsigned once(enum kind kind, enum act counted)
{
    int receives = kind == SEND || kind == DATAGRAM || kind == IMMEDIATE || is_receive(kind), each = kind == LISTS ? LIST : 1;
    unsigned in_vain = 0;
    need(!ibv_req_notify_cq(cq[0], 0) && !ibv_req_notify_cq(cq[1], 0), "arming");
    if (receives && !is_receive(kind)) need(!unmeasured(RECEIVE, POST), "receive");
    need(!by(counted == POST, kind, POST), "post");
    if (is_receive(kind)) need(!unmeasured(SEND, POST), "send");
    await(0);
    if (receives) await(1);
    /* The first completion's event comes before the last one is there. */
    if (each > 1) usleep(100000);
    for (int got = 0; got < each;) {
        int n = by(counted == TAKE, kind, TAKE);
        need(n >= 0 && (!n || !wc[0].status), "completion");
        if ((got += n) < each) in_vain++;
    }
    /* The completion at the other end. */
    if (receives) {
        struct ibv_cq *other = cq[!is_receive(kind)];
        while (ibv_poll_cq(other, LIST, wc) == 0) usleep(1000);
    }
    return in_vain;
}

int main(int argc, char **argv)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    const char *device = "";
    for (int option; (option = getopt(argc, argv, "d:g:")) != -1;)
        if (option == 'd') device = optarg;
        else gid_index = atoi(optarg);
    while (list && *list && strcmp(ibv_get_device_name(*list), device)) list++;
    need(list && *list, "device");
    need(!!(context = ibv_open_device(*list)), "open");
    need(!!(pd = ibv_alloc_pd(context)), "domain");
    need(!posix_memalign((void **)&memory, 4096, 2 * BUFFER), "memory");
    need(!!(mr = ibv_reg_mr(pd, memory, 2 * BUFFER, 15)), "region");
    need(!ibv_query_gid(context, 1, gid_index, &gid), "GID");
    setvbuf(stdout, NULL, _IOLBF, 0);
    int part = 0;
    for (enum kind kind = 0; kind < KINDS; kind++)
        for (enum act act = 0; act < ACTS; act++) {
            begin(kind);
            for (int i = 0; i < WARM; i++) once(kind, act);
            mark(), part++;
            unsigned in_vain = 0;
            for (int i = 0; i < ROUNDS; i++) in_vain += once(kind, act);
            mark(), part++;
            if (in_vain) fprintf(stderr, "not sound: %s-%s: %u polls in vain\n", names[kind], whats[act], in_vain);
            printf("%d %s-%s %d\n", part, names[kind], whats[act], ROUNDS);
            end(kind);
        }
    return 0;
}
