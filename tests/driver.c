/*
 * What a device does, line by line, for comparing the drivers of one device: the same program by another libibverbs, or by
 * another driver of the same one, must print the same. Two queue pairs of one process talk to each other.
 *
 *   driver -d DEVICE -g GID-INDEX [-b]
 *   driver -a ADDRESS
 *
 * With -a the device is that of an address, and the queue pairs are connected by rdma_cm: for iWARP, with what that has. With -b, too,
 * what Debian's driver lets through to the kernel's siw is tried.
 * With -b only the extended way to post is tried. (Of Debian's driver for rxe, 44.0, it is no measure: of lists it counts the
 * first element again and again, inline data it takes for elements.)
 * No line has anything that differs from run to run. The exit status is 0 unless something that every driver must be able to
 * do did not work.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "joined.h"

enum { BUFFER = 1 << 16, QKEY = 0x11111111, ACCESS = 15 | IBV_ACCESS_MW_BIND };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *memory; /* Two halves of BUFFER bytes: what goes out, what comes in. */
static union ibv_gid gid;
static int gid_index = -1;
static int is_joined; /* By rdma_cm. */

static void need(int good, const char *what)
{
    if (good) return;
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static const char *name(int error)
{
    return error ? strerrorname_np(error < 0 ? errno : error) : "0";
}

/* Of what is posted. Debian's driver for siw gives negative numbers, and leaves errno as it was. */
static const char *posted(int error)
{
    return is_joined && error ? "refused" : name(error);
}

struct ends {
    struct joined joined;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq[2];
    struct ibv_qp *qp[2];
    struct ibv_srq *srq;
    struct ibv_ah *ah;
};

static int modify(struct ibv_qp *qp, enum ibv_qp_state state, struct ibv_qp *peer)
{
    struct ibv_qp_attr attr = {.qp_state = state, .port_num = 1, .qkey = QKEY, .qp_access_flags = 15, .path_mtu = IBV_MTU_1024,
        .min_rnr_timer = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4, .max_dest_rd_atomic = 4};
    int mask = IBV_QP_STATE, connected = qp->qp_type != IBV_QPT_UD, rc = qp->qp_type == IBV_QPT_RC;
    if (peer) attr.dest_qp_num = peer->qp_num;
    attr.ah_attr.port_num = attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = gid;
    attr.ah_attr.grh.sgid_index = gid_index;
    attr.ah_attr.grh.hop_limit = 64;
    if (state == IBV_QPS_INIT) mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | (connected ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY);
    if (state == IBV_QPS_RTR && connected) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (state == IBV_QPS_RTR && rc) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    if (state == IBV_QPS_RTS) mask |= IBV_QP_SQ_PSN;
    if (state == IBV_QPS_RTS && rc) mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    return ibv_modify_qp(qp, &attr, mask);
}

/* Two queue pairs that are connected; with operations, by ibv_create_qp_ex. */
static struct ends connect_ends(enum ibv_qp_type type, int cqe, int depth, int use_srq, uint64_t ops)
{
    struct ends e = {0};
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = depth, .max_sge = 2}};
    need(!!(e.channel = ibv_create_comp_channel(context)), "completion channel");
    if (use_srq) need(!!(e.srq = ibv_create_srq(pd, &shared)), "shared receive queue");
    for (int i = 0; i < 2; i++) {
        struct ibv_cq_init_attr_ex wanted = {.cqe = cqe, .channel = e.channel,
            .wc_flags = IBV_WC_STANDARD_FLAGS};
        if (ops) e.cq[i] = (struct ibv_cq *)ibv_create_cq_ex(context, &wanted);
        else e.cq[i] = ibv_create_cq(context, cqe, NULL, e.channel, 0);
        need(!!e.cq[i], "completion queue");
    }
    if (is_joined) {
        struct ibv_qp_init_attr attr[2];
        for (int i = 0; i < 2; i++)
            attr[i] = (struct ibv_qp_init_attr){.send_cq = e.cq[i], .recv_cq = e.cq[i], .srq = e.srq, .qp_type = type, .cap = {depth, depth, 4, 4, 64}};
        need(join(&e.joined, pd, attr), "connecting");
        for (int i = 0; i < 2; i++) e.qp[i] = e.joined.id[i]->qp;
        return e;
    }
    for (int i = 0; i < 2; i++) {
        struct ibv_qp_init_attr_ex attr = {.send_cq = e.cq[i], .recv_cq = e.cq[i], .srq = e.srq, .qp_type = type, .pd = pd,
            .cap = {depth, depth, 4, 4, 64}, .comp_mask = IBV_QP_INIT_ATTR_PD | (ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
            .send_ops_flags = ops};
        struct ibv_qp_init_attr plain = {.send_cq = e.cq[i], .recv_cq = e.cq[i], .srq = e.srq, .qp_type = type,
            .cap = {depth, depth, 4, 4, 64}};
        e.qp[i] = ops ? ibv_create_qp_ex(context, &attr) : ibv_create_qp(pd, &plain);
        need(!!e.qp[i], "queue pair");
    }
    for (int i = 0; i < 2; i++)
        for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++)
            need(!modify(e.qp[i], state, e.qp[!i]), "connecting");
    if (type == IBV_QPT_UD) {
        struct ibv_ah_attr attr = {.port_num = 1, .is_global = 1, .grh = {.dgid = gid, .sgid_index = gid_index, .hop_limit = 64}};
        need(!!(e.ah = ibv_create_ah(pd, &attr)), "address handle");
    }
    return e;
}

static void end(struct ends e)
{
    int wrong = 0;
    if (is_joined) wrong |= part(&e.joined);
    else for (int i = 0; i < 2; i++) wrong |= ibv_destroy_qp(e.qp[i]);
    for (int i = 0; i < 2; i++) wrong |= ibv_destroy_cq(e.cq[i]);
    if (e.srq) wrong |= ibv_destroy_srq(e.srq);
    if (e.ah) wrong |= ibv_destroy_ah(e.ah);
    wrong |= ibv_destroy_comp_channel(e.channel);
    printf("  ended: %s\n", name(wrong));
}

static void refill(void)
{
    for (int i = 0; i < BUFFER; i++) memory[i] = i * 7 + (i >> 8);
    memset(memory + BUFFER, 0, BUFFER);
}

/* A sum of what came in, without the header of a datagram. */
static uint32_t sum(struct ends *e)
{
    uint32_t sum = 0;
    for (int i = e->ah ? 64 + 40 : 0; i < BUFFER; i++) sum = sum * 31 + memory[BUFFER + i];
    return sum;
}

static struct ibv_sge piece(int half, int at, int len)
{
    return (struct ibv_sge){(uintptr_t)memory + half * BUFFER + at, len, mr->lkey};
}

static void completions(struct ibv_cq *cq, int n, const char *what, struct ends *e)
{
    struct ibv_wc wc[4];
    time_t began = time(NULL);
    while (n > 0 && time(NULL) < began + 20) {
        int got = ibv_poll_cq(cq, n < 4 ? n : 4, wc);
        need(got >= 0, "poll");
        for (int i = 0; i < got; i++) {
            /* Of a failed request only these fields are there. */
            int good = !wc[i].status, receive = good && wc[i].opcode & IBV_WC_RECV, other = wc[i].qp_num == e->qp[1]->qp_num;
            /* Whether a key was invalidated is told by a bit of the kernel's, which Debian's driver passes on. */
            int flags = receive ? (int)(wc[i].wc_flags & ~(IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK)) : 0;
            printf("  %s: id %llu status %d opcode %d bytes %u flags %x imm %x of %d from %d vendor %x\n", what,
                (unsigned long long)wc[i].wr_id, wc[i].status, good ? wc[i].opcode : 0, receive ? wc[i].byte_len : 0, flags,
                receive && flags & IBV_WC_WITH_IMM ? ntohl(wc[i].imm_data) : 0, other,
                receive && e->ah ? wc[i].src_qp == e->qp[0]->qp_num : 0, wc[i].vendor_err);
        }
        n -= got;
    }
    if (n > 0) printf("  %s: %d completions did not come\n", what, n);
}

static int receive(struct ends *e, uint64_t id, struct ibv_sge *list, int n)
{
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = list, .num_sge = n}, *bad = NULL;
    return e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->qp[1], &wr, &bad);
}

static void one(struct ends *e, const char *what, struct ibv_send_wr wr, int comes)
{
    struct ibv_send_wr *bad = NULL;
    struct ibv_sge in[2] = {piece(1, 64, 1000), piece(1, 2000, 30000)};
    wr.wr_id = 7;
    wr.send_flags |= IBV_SEND_SIGNALED;
    if (e->ah) wr.wr.ud.ah = e->ah, wr.wr.ud.remote_qpn = e->qp[1]->qp_num, wr.wr.ud.remote_qkey = QKEY;
    refill();
    if (comes) need(!receive(e, 8, in, 2), "receive");
    int error = ibv_post_send(e->qp[0], &wr, &bad);
    printf("%s: %s\n", what, posted(error));
    if (error) {
        if (bad != &wr) printf("  another request is named\n");
        return;
    }
    completions(e->cq[0], 1, "send", e);
    if (comes) completions(e->cq[1], 1, "receive", e);
    printf("  sum %08x\n", sum(e));
}

#define WR(...) (struct ibv_send_wr){__VA_ARGS__}

static void device(void)
{
    struct ibv_device_attr_ex attr;
    struct ibv_port_attr port;
    need(!ibv_query_device_ex(context, NULL, &attr), "attributes");
    printf("device: firmware %s qp %d wr %d sge %d srq %d/%d cqe %d mw %d flags %x ports %u ex %llx\n", attr.orig_attr.fw_ver,
        attr.orig_attr.max_qp, attr.orig_attr.max_qp_wr, attr.orig_attr.max_sge, attr.orig_attr.max_srq_wr,
        attr.orig_attr.max_srq_sge, attr.orig_attr.max_cqe, attr.orig_attr.max_mw, attr.orig_attr.device_cap_flags,
        attr.phys_port_cnt_ex, (unsigned long long)attr.device_cap_flags_ex);
    need(!ibv_query_port(context, 1, &port), "port");
    printf("port: state %d mtu %d gids %d messages %u link %d\n", port.state, port.active_mtu, port.gid_tbl_len, port.max_msg_sz,
        port.link_layer);
    printf("port 2: %s\n", name(ibv_query_port(context, 2, &port)));
}

static void capacities(void)
{
    static const struct ibv_qp_cap asked[] = {{1, 1, 1, 1, 0}, {10, 100, 3, 5, 0}, {7, 8, 1, 32, 200}, {100, 1, 32, 1, 400},
        {0, 0, 0, 0, 0}, {1 << 20, 1, 1, 1, 0}, {1, 1, 1000, 1, 0}, {1, 1, 1, 1, 1 << 16}};
    struct ibv_cq *cq = ibv_create_cq(context, 10, NULL, NULL, 0);
    need(!!cq, "completion queue");
    printf("cq of 10: %d\n", cq->cqe);
    for (unsigned i = 0; i < sizeof asked / sizeof *asked; i++) {
        struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = asked[i]}, said;
        struct ibv_qp_attr state;
        errno = 0;
        struct ibv_qp *qp = ibv_create_qp(pd, &attr);
        printf("qp %u: %s %u %u %u %u %u\n", i, qp ? "made" : name(errno), attr.cap.max_send_wr, attr.cap.max_recv_wr,
            attr.cap.max_send_sge, attr.cap.max_recv_sge, attr.cap.max_inline_data);
        if (!qp) continue;
        need(!ibv_query_qp(qp, &state, IBV_QP_CAP, &said), "query");
        printf("  queried: %u %u %u %u %u state %d all %d\n", said.cap.max_send_wr, said.cap.max_recv_wr, said.cap.max_send_sge,
            said.cap.max_recv_sge, said.cap.max_inline_data, state.qp_state, said.sq_sig_all);
        need(!ibv_destroy_qp(qp), "destroy");
    }
    for (enum ibv_qp_type type = IBV_QPT_RC; type <= IBV_QPT_XRC_RECV; type++) {
        if (type > IBV_QPT_UD && type < IBV_QPT_RAW_PACKET) continue;
        struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = type, .cap = {1, 1, 1, 1, 0}};
        errno = 0;
        struct ibv_qp *qp = ibv_create_qp(pd, &attr);
        printf("qp of type %d: %s\n", type, qp ? "made" : name(errno));
        if (qp) ibv_destroy_qp(qp);
    }
    /* 12 is of kernels from 6.2 on. */
    for (int bit = 0; bit < 12; bit++) {
        printf("operation %d:", bit);
        for (enum ibv_qp_type type = IBV_QPT_RC; type <= IBV_QPT_UD; type++) {
            struct ibv_qp_init_attr_ex attr = {.send_cq = cq, .recv_cq = cq, .qp_type = type, .cap = {1, 1, 1, 1, 0}, .pd = pd,
                .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = 1ULL << bit};
            errno = 0;
            struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
            printf(" %s", qp ? "made" : name(errno));
            if (qp) ibv_destroy_qp(qp);
        }
        printf("\n");
    }
    for (int bit = 0; bit < 12; bit++) {
        struct ibv_cq_init_attr_ex attr = {.cqe = 10, .wc_flags = 1 << bit};
        errno = 0;
        struct ibv_cq_ex *ex = ibv_create_cq_ex(context, &attr);
        printf("cq with field %d: %s\n", bit, ex ? "made" : name(errno));
        if (ex) ibv_destroy_cq((struct ibv_cq *)ex);
    }
    ibv_destroy_cq(cq);
    errno = 0;
    printf("cq of 0: %s\n", ibv_create_cq(context, 0, NULL, NULL, 0) ? "made" : name(errno));
    printf("cq of a million: %s\n", ibv_create_cq(context, 1 << 24, NULL, NULL, 0) ? "made" : name(errno));
    struct ibv_xrcd_init_attr xrc = {.comp_mask = 3, .fd = -1, .oflags = 0};
    printf("xrc domain: %s\n", ibv_open_xrcd(context, &xrc) ? "made" : name(errno));
}

/* What siw in the kernel (6.1) dies of or stops at, given it: a piece of nothing, a READ with a fence or of more than one piece. */
static void spared(void)
{
    struct ends e = connect_ends(IBV_QPT_RC, 64, 16, 0, 0);
    struct ibv_sge some[] = {piece(0, 3, 100), piece(0, 300, 0), piece(0, 1000, 1001), piece(0, 5000, 0)}, into = piece(1, 20000, 9000), nothing = piece(1, 8, 0);
    uint64_t at = (uintptr_t)memory;
    printf("\nspared\n");
    one(&e, "send of pieces, some of nothing", WR(.opcode = IBV_WR_SEND, .sg_list = some, .num_sge = 4), 1);
    one(&e, "send of a piece of nothing", WR(.opcode = IBV_WR_SEND, .sg_list = some + 1, .num_sge = 1), 1);
    one(&e, "read with a fence", WR(.opcode = IBV_WR_RDMA_READ, .sg_list = &into, .num_sge = 1, .wr.rdma = {at, mr->rkey}, .send_flags = IBV_SEND_FENCE), 0);
    one(&e, "read of pieces", WR(.opcode = IBV_WR_RDMA_READ, .sg_list = some, .num_sge = 3, .wr.rdma = {at, mr->rkey}), 0);
    one(&e, "send with invalidation, inline", WR(.opcode = IBV_WR_SEND_WITH_INV, .sg_list = some, .num_sge = 1, .send_flags = IBV_SEND_INLINE), 0);
    one(&e, "read of nothing", WR(.opcode = IBV_WR_RDMA_READ, .sg_list = &nothing, .num_sge = 1, .wr.rdma = {at, mr->rkey}), 0);
    one(&e, "read without a place", WR(.opcode = IBV_WR_RDMA_READ, .wr.rdma = {at, mr->rkey}), 0);
    one(&e, "read", WR(.opcode = IBV_WR_RDMA_READ, .sg_list = &into, .num_sge = 1, .wr.rdma = {at, mr->rkey}), 0);
    end(e);
}

static void operations(enum ibv_qp_type type, int use_srq)
{
    struct ends e = connect_ends(type, 64, 16, use_srq, 0);
    struct ibv_sge some[] = {piece(0, 3, 100), piece(0, 300, !!is_joined), piece(0, 1000, 1001), piece(0, 5000, 7)};
    struct ibv_sge small[] = {piece(0, 3, 10), piece(0, 300, 20)}, word = piece(1, 8, 8);
    uint64_t at = (uintptr_t)memory + BUFFER + 4096;
    int big = type == IBV_QPT_UD ? 800 : 30000;
    struct ibv_sge whole = piece(0, 0, big);
    printf("\n%s%s\n", (const char *[]){"", "", "rc", "uc", "ud"}[type], use_srq ? " with srq" : "");
    one(&e, "send", WR(.opcode = IBV_WR_SEND, .sg_list = &whole, .num_sge = 1), 1);
    one(&e, "send of pieces", WR(.opcode = IBV_WR_SEND, .sg_list = some, .num_sge = type == IBV_QPT_UD ? 2 : 4), 1);
    one(&e, "send of nothing", WR(.opcode = IBV_WR_SEND), 1);
    one(&e, "send inline", WR(.opcode = IBV_WR_SEND, .sg_list = small, .num_sge = 2, .send_flags = IBV_SEND_INLINE), 1);
    one(&e, "send with imm", WR(.opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(0x12345), .sg_list = small, .num_sge = 2), 1);
    one(&e, "send inline, too long", WR(.opcode = IBV_WR_SEND, .sg_list = &whole, .num_sge = 1, .send_flags = IBV_SEND_INLINE), 0);
    one(&e, "send of too many pieces", WR(.opcode = IBV_WR_SEND, .sg_list = some, .num_sge = 40), 0);
    if (type != IBV_QPT_UD) {
        one(&e, "write", WR(.opcode = IBV_WR_RDMA_WRITE, .sg_list = some, .num_sge = 4, .wr.rdma = {at, mr->rkey}), 0);
        one(&e, "write inline", WR(.opcode = IBV_WR_RDMA_WRITE, .sg_list = small, .num_sge = 2, .wr.rdma = {at, mr->rkey},
            .send_flags = IBV_SEND_INLINE), 0);
        one(&e, "write with imm", WR(.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htonl(77), .sg_list = some, .num_sge = 4,
            .wr.rdma = {at, mr->rkey}), 1);
    }
    if (type == IBV_QPT_RC) {
        struct ibv_sge into = piece(1, 20000, 9000);
        uint64_t from = (uintptr_t)memory + 100;
        one(&e, "read", WR(.opcode = IBV_WR_RDMA_READ, .sg_list = &into, .num_sge = 1, .wr.rdma = {from, mr->rkey},
            .send_flags = is_joined ? 0 : IBV_SEND_FENCE), 0);
        one(&e, "compare and swap", WR(.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .sg_list = &word, .num_sge = 1,
            .wr.atomic = {at, 0, 99, mr->rkey}), 0);
        one(&e, "fetch and add", WR(.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &word, .num_sge = 1,
            .wr.atomic = {(uintptr_t)memory + 8, 5, 0, mr->rkey}), 0);
        one(&e, "atomic, odd address", WR(.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &word, .num_sge = 1,
            .wr.atomic = {at + 1, 5, 0, mr->rkey}), 0);
        struct ibv_sge half = piece(1, 8, 4);
        one(&e, "atomic, short", WR(.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .sg_list = &half, .num_sge = 1,
            .wr.atomic = {at, 5, 0, mr->rkey}), 0);
    }
    end(e);
}

static void windows(void)
{
    struct ends e = connect_ends(IBV_QPT_RC, 64, 16, 0, 0);
    struct ibv_mw *first = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *second = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    struct ibv_mw_bind_info info = {.mr = mr, .addr = (uintptr_t)memory + BUFFER, .length = 8192, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
    struct ibv_mw_bind bind = {.wr_id = 7, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};
    struct ibv_sge small[] = {piece(0, 3, 10), piece(0, 300, 20)};
    printf("\nwindows\n");
    need(first && second, "windows");
    printf("bind of type 1: %s\n", name(ibv_bind_mw(e.qp[0], first, &bind)));
    completions(e.cq[0], 1, "bind", &e);
    one(&e, "write by it", WR(.opcode = IBV_WR_RDMA_WRITE, .sg_list = small, .num_sge = 2, .wr.rdma = {info.addr + 100, first->rkey}), 0);
    printf("bind of type 2 by ibv_bind_mw: %s\n", name(ibv_bind_mw(e.qp[0], second, &bind)));
    bind.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
    printf("bind with addresses from 0: %s\n", name(ibv_bind_mw(e.qp[0], first, &bind)));
    uint32_t rkey = ibv_inc_rkey(second->rkey);
    /* A window of type 2 is the queue pair's that it is bound on: the target binds. */
    struct ibv_send_wr wr = {.wr_id = 7, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED, .bind_mw = {second, rkey, info}}, *bad;
    printf("bind of type 2: %s\n", name(ibv_post_send(e.qp[1], &wr, &bad)));
    completions(e.cq[1], 1, "bind", &e);
    one(&e, "write by it", WR(.opcode = IBV_WR_RDMA_WRITE, .sg_list = small, .num_sge = 2, .wr.rdma = {info.addr + 100, rkey}), 0);
    one(&e, "send with invalidation", WR(.opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = rkey, .sg_list = small, .num_sge = 2), 1);
    one(&e, "local invalidation of a region that is none", WR(.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = 0x11111111), 0);
    end(e);
    printf("freed: %s %s\n", name(ibv_dealloc_mw(first)), name(ibv_dealloc_mw(second)));
}

/* What waits when a connection ends comes back. */
static void parted(struct ends *e, int waiting)
{
    struct ibv_wc wc;
    int flushed = 0;
    time_t began = time(NULL);
    printf("disconnect: %s\n", name(rdma_disconnect(e->joined.id[0])));
    for (int i = 0; i < 2; i++) need(!!joined_event(&e->joined, RDMA_CM_EVENT_DISCONNECTED), "disconnected");
    while (flushed < waiting && time(NULL) < began + 20) flushed += ibv_poll_cq(e->cq[1], 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR;
    printf("all flushed: %d\n", flushed == waiting);
}

/* What the peer does not allow ends the connection. */
static void denied(void)
{
    struct ends e = connect_ends(IBV_QPT_RC, 64, 16, 0, 0);
    struct ibv_sge small[] = {piece(0, 3, 10), piece(0, 300, 20)}, foreign = {(uintptr_t)memory, 8, 0x11111100};
    struct ibv_wc wc;
    struct ibv_send_wr wr = WR(.wr_id = 9, .opcode = IBV_WR_RDMA_READ, .sg_list = small, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {(uintptr_t)memory, 0x22222200}), *bad;
    printf("\ndenied\n");
    printf("read by a key that is none: %s\n", posted(ibv_post_send(e.qp[0], &wr, &bad)));
    for (int i = 0; i < 2; i++) need(!!joined_event(&e.joined, RDMA_CM_EVENT_DISCONNECTED), "disconnected");
    completions(e.cq[0], 1, "send", &e);
    printf("more completions: %d\n", ibv_poll_cq(e.cq[0], 1, &wc));
    end(e);
    e = connect_ends(IBV_QPT_RC, 64, 16, 0, 0);
    wr = WR(.wr_id = 9, .opcode = IBV_WR_SEND, .sg_list = &foreign, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED);
    printf("send from no region: %s\n", posted(ibv_post_send(e.qp[0], &wr, &bad)));
    completions(e.cq[0], 1, "send", &e);
    end(e);
    struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
    attr.send_cq = attr.recv_cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    need(!!qp, "queue pair");
    for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) printf("by hand to %d: %s\n", state, modify(qp, state, qp) ? "refused" : "0");
    wr = WR(.wr_id = 9, .opcode = IBV_WR_SEND, .sg_list = small, .num_sge = 1);
    printf("send before it is connected: %s\n", posted(ibv_post_send(qp, &wr, &bad)));
    printf("ended: %s", name(ibv_destroy_qp(qp)));
    printf(" %s\n", name(ibv_destroy_cq(attr.send_cq)));
}

/* More requests than the queue has places, in lists, and their order; then a full queue. */
static void order(void)
{
    struct ends e = connect_ends(IBV_QPT_RC, 200, 20, 0, 0);
    struct ibv_sge in[20], out[20];
    struct ibv_recv_wr receives[20], *bad_receive;
    struct ibv_send_wr sends[20], *bad;
    struct ibv_wc wc[40];
    int in_order = 1, next = 0;
    printf("\norder\n");
    refill();
    for (int round = 0; round < 30; round++) {
        for (int i = 0; i < 20; i++) {
            in[i] = piece(1, (round * 20 + i) * 64, 64), out[i] = piece(0, (round * 20 + i) * 64, 64);
            receives[i] = (struct ibv_recv_wr){.wr_id = round * 20 + i, .sg_list = &in[i], .num_sge = 1, .next = i < 19 ? &receives[i + 1] : NULL};
            sends[i] = (struct ibv_send_wr){.wr_id = i, .sg_list = &out[i], .num_sge = 1, .opcode = IBV_WR_SEND, .next = i < 19 ? &sends[i + 1] : NULL,
                .send_flags = i == 19 ? IBV_SEND_SIGNALED : 0};
        }
        need(!ibv_post_recv(e.qp[1], receives, &bad_receive), "receives");
        need(!ibv_post_send(e.qp[0], sends, &bad), "sends");
        for (int n = 0, got; n < 20; n += got) {
            need((got = ibv_poll_cq(e.cq[1], 7, wc)) >= 0, "poll");
            for (int i = 0; i < got; i++) in_order &= !wc[i].status && (int)wc[i].wr_id == next++;
        }
        for (int got = 0; !got;) need((got = ibv_poll_cq(e.cq[0], 40, wc)) >= 0 && (!got || wc[0].wr_id == 19), "signalled");
    }
    printf("%d in order: %d, sum %08x\n", next, in_order, sum(&e));
    int n = 0, error;
    do {
        receives[0].next = NULL;
        error = ibv_post_recv(e.qp[1], receives, &bad_receive);
    } while (!error && ++n < 1000);
    printf("receives until full: %d %s\n", n, posted(error));
    if (is_joined) {
        parted(&e, n);
        end(e);
        return;
    }
    printf("to RESET: %s\n", name(modify(e.qp[1], IBV_QPS_RESET, NULL)));
    printf("error: %s\n", name(modify(e.qp[0], IBV_QPS_ERR, NULL)));
    sends[0].next = NULL;
    printf("send in it: %s\n", name(ibv_post_send(e.qp[0], sends, &bad)));
    completions(e.cq[0], 1, "flushed", &e);
    end(e);
}

static void sizes(void)
{
    struct ends e = connect_ends(IBV_QPT_RC, 10, 16, 1, 0);
    struct ibv_sge small = piece(0, 3, 10), in = piece(1, 0, 100);
    struct ibv_srq_attr attr = {.max_wr = 50, .srq_limit = 0};
    printf("\nsizes\ncq %d\n", e.cq[1]->cqe);
    need(!ibv_query_srq(e.srq, &attr), "query");
    printf("srq: %u %u %u\n", attr.max_wr, attr.max_sge, attr.srq_limit);
    for (int i = 0; i < 3; i++) need(!receive(&e, 10 + i, &in, 1), "receive");
    for (int i = 0; i < 3; i++) {
        struct ibv_send_wr wr = {.wr_id = i, .sg_list = &small, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
        need(!ibv_post_send(e.qp[0], &wr, &bad), "send");
        completions(e.cq[0], 1, "send", &e);
    }
    /* With completions in it. */
    printf("resized to 100: %s", name(ibv_resize_cq(e.cq[1], 100)));
    printf(" %d\n", e.cq[1]->cqe);
    printf("to 1: %s\n", name(ibv_resize_cq(e.cq[1], 1)));
    completions(e.cq[1], 3, "receive", &e);
    printf("to 1: %s", name(ibv_resize_cq(e.cq[1], 1)));
    printf(" %d\n", e.cq[1]->cqe);
    for (int i = 0; i < 5; i++) need(!receive(&e, 20 + i, &in, 1), "receive");
    attr = (struct ibv_srq_attr){.max_wr = 40};
    printf("srq resized to 40: %s", name(ibv_modify_srq(e.srq, &attr, IBV_SRQ_MAX_WR)));
    need(!ibv_query_srq(e.srq, &attr), "query");
    printf(" %u\n", attr.max_wr);
    attr = (struct ibv_srq_attr){.srq_limit = 3};
    printf("limit: %s", name(ibv_modify_srq(e.srq, &attr, IBV_SRQ_LIMIT)));
    need(!ibv_query_srq(e.srq, &attr), "query");
    printf(" %u\n", attr.srq_limit);
    for (int i = 0; i < 3; i++) one(&e, "send", WR(.opcode = IBV_WR_SEND, .sg_list = &small, .num_sge = 1), 1);
    int n = 0, error;
    while (!(error = receive(&e, 30, &in, 1)) && ++n < 1000) {}
    printf("receives until full: %d %s\n", n, name(error));
    end(e);
}

static void events(void)
{
    struct ends e = connect_ends(IBV_QPT_RC, 16, 16, 0, 0);
    struct ibv_sge small = piece(0, 3, 10);
    printf("\nevents\n");
    for (int solicited = 0; solicited < (is_joined ? 1 : 2); solicited++) { /* Of solicited ones siw (6.1) tells nothing. */
        struct pollfd waiting = {e.channel->fd, POLLIN, 0};
        struct ibv_cq *cq;
        void *data;
        need(!ibv_req_notify_cq(e.cq[1], solicited), "request");
        one(&e, "send", WR(.opcode = IBV_WR_SEND, .sg_list = &small, .num_sge = 1), 1);
        printf("event: %d\n", poll(&waiting, 1, solicited ? 100 : 5000));
        if (solicited) one(&e, "solicited", WR(.opcode = IBV_WR_SEND, .sg_list = &small, .num_sge = 1, .send_flags = IBV_SEND_SOLICITED), 1);
        printf("event: %d\n", poll(&waiting, 1, 5000));
        need(!ibv_get_cq_event(e.channel, &cq, &data), "event");
        printf("of that queue: %d\n", cq == e.cq[1]);
        ibv_ack_cq_events(cq, 1);
    }
    end(e);
}

static void shown(struct ibv_cq *cq, int n, const char *what)
{
    struct ibv_cq_ex *ex = (struct ibv_cq_ex *)cq;
    struct ibv_poll_cq_attr attr = {0};
    time_t began = time(NULL);
    while (n > 0 && time(NULL) < began + 20) {
        int error = ibv_start_poll(ex, &attr);
        if (error == ENOENT) continue;
        need(!error, "start");
        do {
            int receive = !ex->status && ibv_wc_read_opcode(ex) & IBV_WC_RECV;
            int flags = receive ? ibv_wc_read_wc_flags(ex) & ~(IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK) : 0;
            printf("  %s: id %llu status %d opcode %d bytes %u flags %x imm %x\n", what, (unsigned long long)ex->wr_id, ex->status,
                ex->status ? 0 : ibv_wc_read_opcode(ex), receive ? ibv_wc_read_byte_len(ex) : 0, flags,
                receive && flags & IBV_WC_WITH_IMM ? ntohl(ibv_wc_read_imm_data(ex)) : 0);
        } while (--n > 0 && !(error = ibv_next_poll(ex)));
        ibv_end_poll(ex);
    }
    if (n > 0) printf("  %s: %d completions did not come\n", what, n);
}

static void builders(enum ibv_qp_type type)
{
    uint64_t ops = type == IBV_QPT_UD ? IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM
        : type == IBV_QPT_UC ? 15 : 0x3ff;
    struct ends e = connect_ends(type, 64, 16, 0, ops);
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(e.qp[0]);
    struct ibv_sge some[] = {piece(0, 3, 100), piece(0, 1000, 600)}, many[8] = {0}, in[2] = {piece(1, 64, 1000), piece(1, 2000, 30000)};
    struct ibv_data_buf data[] = {{memory + 3, 10}, {memory + 30, 20}};
    uint64_t at = (uintptr_t)memory + BUFFER + 4096;
    printf("\nbuilders, type %d\n", type);
    refill();
    for (int i = 0; i < 8; i++) need(!receive(&e, i, in, 2), "receive");
#define TO if (e.ah) ibv_wr_set_ud_addr(qp, e.ah, e.qp[1]->qp_num, QKEY)
    ibv_wr_start(qp);
    qp->wr_flags = IBV_SEND_SIGNALED;
    qp->wr_id = 1, ibv_wr_send(qp), ibv_wr_set_sge_list(qp, 2, some);
    TO;
    qp->wr_id = 2, ibv_wr_send_imm(qp, htonl(0x777)), ibv_wr_set_inline_data_list(qp, 2, data);
    TO;
    qp->wr_id = 3, ibv_wr_send(qp), ibv_wr_set_inline_data(qp, memory + 50, 33);
    TO;
    if (type != IBV_QPT_UD) {
        qp->wr_id = 4, ibv_wr_rdma_write(qp, mr->rkey, at), ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 5000);
        qp->wr_id = 5, ibv_wr_rdma_write_imm(qp, mr->rkey, at + 8192, htonl(5)), ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 50);
    }
    printf("complete: %s\n", name(ibv_wr_complete(qp)));
    shown(e.cq[0], type == IBV_QPT_UD ? 3 : 5, "send");
    shown(e.cq[1], type == IBV_QPT_UD ? 3 : 4, "receive");
    printf("sum %08x\n", sum(&e));
    if (type == IBV_QPT_RC) {
        struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
        struct ibv_mw_bind_info info = {mr, at, 4096, IBV_ACCESS_REMOTE_WRITE};
        need(!!mw, "window");
        uint32_t rkey = ibv_inc_rkey(mw->rkey);
        ibv_wr_start(qp);
        qp->wr_id = 6, ibv_wr_rdma_read(qp, mr->rkey, (uintptr_t)memory), ibv_wr_set_sge(qp, mr->lkey, at + 20000, 3000);
        qp->wr_id = 7, ibv_wr_atomic_cmp_swp(qp, mr->rkey, at + 16384, 0, 9), ibv_wr_set_sge(qp, mr->lkey, at + 16392, 8);
        qp->wr_id = 8, ibv_wr_atomic_fetch_add(qp, mr->rkey, at + 16384, 9), ibv_wr_set_sge(qp, mr->lkey, at + 16400, 8);
        qp->wr_id = 9, ibv_wr_bind_mw(qp, mw, rkey, &info);
        qp->wr_id = 10, ibv_wr_local_inv(qp, rkey);
        printf("complete: %s\n", name(ibv_wr_complete(qp)));
        shown(e.cq[0], 5, "send");
        printf("sum %08x\n", sum(&e));
        ibv_wr_start(qp);
        ibv_wr_send_inv(qp, 0x123);
        ibv_wr_abort(qp);
        ibv_dealloc_mw(mw);
    }
    ibv_wr_start(qp);
    qp->wr_id = 11, ibv_wr_send(qp), ibv_wr_set_sge_list(qp, 1, some);
    TO;
    qp->wr_id = 12, ibv_wr_send(qp), ibv_wr_set_sge_list(qp, 8, many);
    TO;
    printf("too many pieces: %s\n", name(ibv_wr_complete(qp)));
    ibv_wr_start(qp);
    qp->wr_id = 13, ibv_wr_send(qp), ibv_wr_set_inline_data(qp, memory, 5000);
    TO;
    printf("too much inline: %s\n", name(ibv_wr_complete(qp)));
    int n = 0;
    ibv_wr_start(qp);
    for (; n < 200; n++) {
        ibv_wr_send(qp), ibv_wr_set_sge_list(qp, 1, some);
        TO;
    }
    printf("too many: %s\n", name(ibv_wr_complete(qp)));
    /* None of those were sent. */
    ibv_wr_start(qp);
    qp->wr_id = 14, ibv_wr_send(qp), ibv_wr_set_sge_list(qp, 1, some);
    TO;
    printf("complete: %s\n", name(ibv_wr_complete(qp)));
    shown(e.cq[0], 1, "send");
    shown(e.cq[1], 1, "receive");
    end(e);
}

static void opened(const char *device_name)
{
    struct ibv_device **list = ibv_get_device_list(NULL), **at = list;
    if (!device_name || gid_index < 0) exit(64);
    while (at && *at && strcmp(ibv_get_device_name(*at), device_name)) at++;
    need(at && *at, "no such device");
    need(!!(context = ibv_open_device(*at)), "open");
    ibv_free_device_list(list);
    need(!ibv_query_gid(context, 1, gid_index, &gid), "GID");
}

int main(int argc, char **argv)
{
    const char *device_name = NULL;
    int builds = 0;
    for (int option; (option = getopt(argc, argv, "a:bd:g:")) != -1;) {
        if (option == 'a') need(is_joined = !joined_at(optarg), "address");
        if (option == 'b') builds = 1;
        if (option == 'd') device_name = optarg;
        if (option == 'g') gid_index = atoi(optarg);
    }
    if (is_joined) need(!!(context = joined_context()), "device of that address");
    else opened(device_name);
    need(!!(pd = ibv_alloc_pd(context)), "domain");
    need(!posix_memalign((void **)&memory, 4096, 2 * BUFFER), "memory");
    need(!!(mr = ibv_reg_mr(pd, memory, 2 * BUFFER, ACCESS)), "region");
    if (builds && is_joined) {
        spared();
    } else if (builds) {
        for (enum ibv_qp_type type = IBV_QPT_RC; type <= IBV_QPT_UD; type++) builders(type);
    } else if (is_joined) {
        device();
        capacities();
        for (int shared = 0; shared < 2; shared++) operations(IBV_QPT_RC, shared);
        order();
        events();
        denied();
    } else {
        device();
        capacities();
        for (enum ibv_qp_type type = IBV_QPT_RC; type <= IBV_QPT_UD; type++) operations(type, 0);
        operations(IBV_QPT_RC, 1);
        windows();
        order();
        sizes();
        events();
    }
    printf("\nended: %s", name(ibv_dereg_mr(mr)));
    printf(" %s", name(ibv_dealloc_pd(pd)));
    printf(" %s\n", is_joined ? "0" : name(ibv_close_device(context)));
    return 0;
}
