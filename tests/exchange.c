/*
 * Every operation of RC, UC and UD in many sizes between two processes, each byte compared, for tests of one stack against
 * another: only libibverbs is called, so that it runs on any.
 *
 *   exchange [-d DEVICE] -g GID-INDEX [-t rc|uc|ud] [-m MTU] [-p PORT] [-n ROUNDS] [-l] [HOST]
 *
 * Without HOST it serves. Both sides meet by TCP (on HOST's address family), are client and then server of each operation,
 * and take their queue pairs down together: nobody leaves while the other may still retransmit.
 * -l: packets get lost, so messages of UC and UD may be (those that arrive must be right all the same), and nothing is
 * asked for that is forbidden.
 * The exit status is 0 if all was right; else a line says what was not.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const uint32_t rc_sizes[] = {0, 1, 2, 3, 5, 8, 63, 64, 255, 1000, 1023, 1024, 1025, 4095, 4096, 4097, 8191, 8193,
                                    16385, 65536, 100001, 262144};
static const uint32_t ud_sizes[] = {0, 1, 2, 3, 5, 8, 63, 64, 255, 256, 257, 511, 512, 513, 1000, 1021, 1023, 1024};
#define COUNT(list) (int)(sizeof list / sizeof list[0])
enum { BUFFER = 1 << 20, CANARY = 0xee, GRH = 40, QKEY = 0x11111111 };

struct peer {
    union ibv_gid gid;
    uint32_t qpn, psn, rkey;
    uint64_t addr;
    int is_rxe;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct ibv_ah *ah;
static uint8_t *source, *target; /* Of BUFFER bytes each, one after the other in the region. */
static struct peer own, other;
static int control = -1, gid_index = -1, lossy;
static enum ibv_qp_type type = IBV_QPT_RC;
static enum ibv_mtu mtu = IBV_MTU_1024;
static const char *doing = "set-up";

static void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
static void fail(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "exchange: %s: ", doing);
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    va_end(list);
    exit(1);
}

static void need(int good, const char *what)
{
    if (!good) fail("%s: %s", what, strerror(errno));
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void both_have(void *mine, void *theirs, size_t len)
{
    size_t got = 0;
    need(write(control, mine, len) == (ssize_t)len, "the peer's TCP connection");
    while (got < len) {
        ssize_t n = read(control, (char *)theirs + got, len - got);
        if (n <= 0) fail("the peer is gone");
        got += n;
    }
}

/* Both sides have come this far. */
static void meet(void)
{
    char mine = 'x', theirs;
    both_have(&mine, &theirs, 1);
}

static uint8_t pattern(unsigned seed, uint32_t at)
{
    uint32_t x = at * 2654435761u + seed * 40503u + 12345;
    return x >> 16 ^ x >> 8;
}

static void fill(uint8_t *at, uint32_t len, unsigned seed)
{
    for (uint32_t i = 0; i < len; i++) at[i] = pattern(seed, i);
}

static void check(const uint8_t *at, uint32_t len, unsigned seed, int index)
{
    for (uint32_t i = 0; i < len; i++)
        if (at[i] != pattern(seed, i)) fail("message %d of %u bytes: wrong at byte %u", index, len, i);
    if (at[len] != CANARY) fail("message %d of %u bytes: something behind it", index, len);
}

static int meet_by_tcp(const char *host, const char *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE, .ai_family = host ? 0 : AF_INET6}, *info;
    int one = 1, fd;
    if (getaddrinfo(host, port, &hints, &info)) fail("unknown host");
    fd = socket(info->ai_family, SOCK_STREAM, 0);
    need(fd >= 0, "socket");
    if (host) {
        need(!connect(fd, info->ai_addr, info->ai_addrlen), "connect");
    } else {
        int listener = fd, zero = 0;
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
        need(!bind(listener, info->ai_addr, info->ai_addrlen), "bind");
        need(!listen(listener, 1), "listen");
        need((fd = accept(listener, NULL, NULL)) >= 0, "accept");
        close(listener);
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    freeaddrinfo(info);
    return fd;
}

static void open_device(const char *name)
{
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    need(list != NULL, "ibv_get_device_list");
    for (int i = 0; i < count && !context; i++)
        if (!name || !strcmp(ibv_get_device_name(list[i]), name)) {
            context = ibv_open_device(list[i]);
            own.is_rxe = name && !strncmp(name, "rxe", 3);
        }
    need(context != NULL, "no such device");
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 512, NULL, NULL, 0);
    need(pd && cq, "PD and CQ");
    if (posix_memalign((void **)&source, 4096, 2 * BUFFER)) fail("no memory");
    target = source + BUFFER;
    mr = ibv_reg_mr(pd, source, 2 * BUFFER,
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    need(mr != NULL, "ibv_reg_mr");
}

/* A new queue pair, connected to the peer's. */
static void connect_qp(void)
{
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = type,
        .cap = {.max_send_wr = 128, .max_recv_wr = 128, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64}};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    qp = ibv_create_qp(pd, &init);
    need(qp != NULL, "ibv_create_qp");
    own.qpn = qp->qp_num;
    own.psn = (qp->qp_num * 7919 + (uint32_t)(now() * 1e6)) & 0xffffff;
    if (own.qpn & 1) own.psn |= 0xfffff0; /* It soon wraps. */
    own.rkey = mr->rkey;
    own.addr = (uintptr_t)target;
    need(!ibv_query_gid(context, 1, gid_index, &own.gid), "ibv_query_gid");
    both_have(&own, &other, sizeof own);

    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1,
        .grh = {.dgid = other.gid, .sgid_index = gid_index, .hop_limit = 64}};
    if (type == IBV_QPT_UD) {
        attr.qkey = QKEY;
        need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
        attr.qp_state = IBV_QPS_RTR;
        need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE), "RTR");
        attr.qp_state = IBV_QPS_RTS;
        attr.sq_psn = own.psn;
        need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
        need((ah = ibv_create_ah(pd, &to)) != NULL, "ibv_create_ah");
    } else {
        int rc = type == IBV_QPT_RC;
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (rc ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0);
        need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = mtu;
        attr.dest_qp_num = other.qpn;
        attr.rq_psn = other.psn;
        attr.max_dest_rd_atomic = 4;
        attr.min_rnr_timer = 12;
        attr.ah_attr = to;
        need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)), "RTR");
        attr.qp_state = IBV_QPS_RTS;
        attr.sq_psn = own.psn;
        attr.max_rd_atomic = 4;
        attr.timeout = 14;
        attr.retry_cnt = 7;
        attr.rnr_retry = 7;
        need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (rc ? IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT |
                            IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY : 0)), "RTS");
    }
    meet();
}

static void destroy_qp(void)
{
    meet();
    if (ah) ibv_destroy_ah(ah);
    ah = NULL;
    need(!ibv_destroy_qp(qp), "ibv_destroy_qp");
}

/* The next completion, or 0 after `patience` seconds. */
static int next(struct ibv_wc *wc, double patience)
{
    double began = now();
    int n;
    do n = ibv_poll_cq(cq, 1, wc);
    while (!n && now() - began < patience);
    need(n >= 0, "ibv_poll_cq");
    return n;
}

static void completes(uint64_t id, enum ibv_wc_status status)
{
    struct ibv_wc wc;
    if (!next(&wc, 30)) fail("request %lu does not complete", (unsigned long)id);
    if (wc.wr_id != id || wc.status != status)
        fail("completion of %lu with %s, wanted %lu with %s", (unsigned long)wc.wr_id, ibv_wc_status_str(wc.status),
             (unsigned long)id, ibv_wc_status_str(status));
}

static void post(enum ibv_wr_opcode op, uint64_t id, uint8_t *at, uint32_t len, uint8_t *remote, uint32_t rkey, int with_inline)
{
    /* In three parts, one of them empty now and then. */
    uint32_t first = len / 3, second = len / 5;
    struct ibv_sge parts[3] = {{(uintptr_t)at, first, mr->lkey}, {(uintptr_t)at + first, second, mr->lkey},
                               {(uintptr_t)at + first + second, len - first - second, mr->lkey}};
    struct ibv_send_wr wr = {.wr_id = id, .sg_list = parts, .num_sge = len ? 3 : 0, .opcode = op,
        .send_flags = IBV_SEND_SIGNALED | (with_inline ? IBV_SEND_INLINE : 0), .imm_data = htonl(0xcafe0000u + id)}, *bad;
    if (len < 5) { /* An element of length 0 stands for 2 GiB at some. */
        parts[0].length = len;
        wr.num_sge = len ? 1 : 0;
    }
    if (type == IBV_QPT_UD) {
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = other.qpn;
        wr.wr.ud.remote_qkey = QKEY;
    } else {
        wr.wr.rdma.remote_addr = other.addr + (remote - target);
        wr.wr.rdma.rkey = rkey;
    }
    int error = ibv_post_send(qp, &wr, &bad);
    if (error) fail("ibv_post_send: %s", strerror(error));
}

static void post_recv(uint64_t id, uint8_t *at, uint32_t len)
{
    struct ibv_sge parts[2] = {{(uintptr_t)at, len / 2, mr->lkey}, {(uintptr_t)at + len / 2, len - len / 2, mr->lkey}};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = parts, .num_sge = 2}, *bad;
    int error = ibv_post_recv(qp, &wr, &bad);
    if (error) fail("ibv_post_recv: %s", strerror(error));
}

static int sizes(const uint32_t **list)
{
    *list = type == IBV_QPT_UD ? ud_sizes : rc_sizes;
    return type == IBV_QPT_UD ? COUNT(ud_sizes) : type == IBV_QPT_UC ? COUNT(rc_sizes) - 3 : COUNT(rc_sizes);
}

/* Where each message of a batch lies, with room for a GRH before and a canary behind. */
static uint8_t *place(uint8_t *base, int index)
{
    const uint32_t *list;
    sizes(&list);
    for (int i = 0; i < index; i++) base += list[i] + 64;
    return base;
}

/* Where messages were lost, receives are left: they go with the queue pair. */
static void end_of_messages(void)
{
    meet();
    if (lossy && type != IBV_QPT_RC) {
        destroy_qp();
        connect_qp();
    }
}

/* SENDs, or WRITEs with immediate data, all posted at once. */
static void messages(int active, enum ibv_wr_opcode op, unsigned seed, int with_inline)
{
    const uint32_t *list;
    int count = sizes(&list), got = 0, is_write = op == IBV_WR_RDMA_WRITE_WITH_IMM;
    int with_imm = is_write || op == IBV_WR_SEND_WITH_IMM, grh = type == IBV_QPT_UD ? GRH : 0;
    struct ibv_wc wc;
    if (with_inline)
        while (list[count - 1] > 64) count--;
    if (active) {
        for (int i = 0; i < count; i++) fill(place(source, i), list[i], seed);
        meet();
        for (int i = 0; i < count; i++) {
            post(op, i, place(source, i), list[i], place(target, i), other.rkey, with_inline);
            if (with_inline) memset(place(source, i), 0x55, list[i]);
        }
        for (int i = 0; i < count; i++) completes(i, IBV_WC_SUCCESS);
        meet();
        end_of_messages();
        return;
    }
    memset(target, CANARY, BUFFER);
    /* In order; where messages get lost, the next one takes the receive: each has room for any. */
    uint32_t room = list[count - 1] + grh + 1;
    int roomy = type != IBV_QPT_RC && !is_write;
    for (int i = 0; i < count; i++)
        post_recv(i, roomy ? target + i * room : place(target, i), is_write ? 0 : roomy ? room - 1 : list[i]);
    meet();
    meet();
    while (got < count && next(&wc, lossy && type != IBV_QPT_RC ? 1 : 10)) {
        int i = with_imm ? (int)(ntohl(wc.imm_data) - 0xcafe0000u) : got;
        if (wc.status) fail("receive %d: %s", got, ibv_wc_status_str(wc.status));
        if (wc.wr_id != (uint64_t)got) fail("receive %lu in place of %d", (unsigned long)wc.wr_id, got);
        if (!!(wc.wc_flags & IBV_WC_WITH_IMM) != with_imm) fail("receive %d: immediate data or not?", got);
        if (wc.qp_num != qp->qp_num) fail("receive %d: QP number %x", got, wc.qp_num);
        if (with_imm && (i < got || i >= count || (!lossy && i != got))) fail("receive %d: immediate data %x", got, ntohl(wc.imm_data));
        if (!lossy && wc.byte_len != list[i] + grh) fail("receive %d: %u bytes, sent %u", got, wc.byte_len, list[i]);
        if (wc.opcode != (is_write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV)) fail("receive %d: opcode %x", got, wc.opcode);
        uint8_t *at = roomy ? target + got * room : place(target, i);
        if (grh) {
            int v4 = IN6_IS_ADDR_V4MAPPED((struct in6_addr *)&other.gid);
            if (!(wc.wc_flags & IBV_WC_GRH) || wc.src_qp != other.qpn) fail("datagram %d: from %x", got, wc.src_qp);
            if (v4 ? memcmp(at + 32, other.gid.raw + 12, 4) || memcmp(at + 36, own.gid.raw + 12, 4)
                   : memcmp(at + 8, other.gid.raw, 16) || memcmp(at + 24, own.gid.raw, 16))
                fail("datagram %d: its header has other addresses", got);
        }
        check(at + grh, is_write ? list[i] : wc.byte_len - grh, seed, i);
        got++;
    }
    if (got < count && !(lossy && type != IBV_QPT_RC)) fail("%d of %d messages", got, count);
    end_of_messages();
}

static void writes(int active, unsigned seed, int with_inline)
{
    const uint32_t *list;
    int count = sizes(&list);
    if (with_inline)
        while (list[count - 1] > 64) count--;
    if (active) {
        for (int i = 0; i < count; i++) fill(place(source, i), list[i], seed);
        meet();
        for (int i = 0; i < count; i++) post(IBV_WR_RDMA_WRITE, i, place(source, i), list[i], place(target, i), other.rkey, with_inline);
        for (int i = 0; i < count; i++) completes(i, IBV_WC_SUCCESS);
        if (type == IBV_QPT_UC) usleep(300000); /* It completes when it is sent. */
        meet();
    } else {
        memset(target, CANARY, BUFFER);
        meet();
        meet();
        if (type == IBV_QPT_RC || !lossy)
            for (int i = 0; i < count; i++) check(place(target, i), list[i], seed, i);
    }
    meet();
}

static void reads(int active, unsigned seed)
{
    const uint32_t *list;
    int count = sizes(&list);
    if (active) {
        memset(source, CANARY, BUFFER);
        meet();
        for (int i = 0; i < count; i++) post(IBV_WR_RDMA_READ, i, place(source, i), list[i], place(target, i), other.rkey, 0);
        for (int i = 0; i < count; i++) completes(i, IBV_WC_SUCCESS);
        for (int i = 0; i < count; i++) check(place(source, i), list[i], seed, i);
    } else {
        for (int i = 0; i < count; i++) fill(place(target, i), list[i], seed);
        meet();
    }
    meet();
}

/* Each atomic once and only once, whatever is lost: one word is added to, one is swapped; some compare with what is not there. */
static void atomics(int active, unsigned seed)
{
    enum { MANY = 48, DEEP = 4 };
    const uint64_t start = 0x0123456789abcdefu * (seed + 1);
    uint64_t *found = (uint64_t *)source, *words = (uint64_t *)target, model[2] = {start, start}, wanted[MANY], ends[2];
    memset(source, CANARY, BUFFER);
    words[0] = words[1] = start;
    meet();
    for (int i = 0; active && i < MANY; i++) {
        struct ibv_sge sge = {(uintptr_t)&found[i], 8, mr->lkey};
        struct ibv_send_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED}, *bad;
        int swap = i & 1, wrong = i % 5 == 4;
        uint64_t *word = &model[swap];
        wanted[i] = *word;
        wr.opcode = swap ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
        wr.wr.atomic.remote_addr = other.addr + 8 * swap;
        wr.wr.atomic.rkey = other.rkey;
        wr.wr.atomic.compare_add = swap ? wrong ? ~*word : *word : 0x100000001u + i;
        wr.wr.atomic.swap = start ^ i;
        if (!swap) *word += 0x100000001u + i;
        else if (!wrong) *word = start ^ i;
        if (ibv_post_send(qp, &wr, &bad)) fail("ibv_post_send");
        if (i % DEEP == DEEP - 1)
            for (int j = i - DEEP + 1; j <= i; j++) {
                completes(j, IBV_WC_SUCCESS);
                if (found[j] != wanted[j]) fail("atomic %d found %lx, not %lx", j, (long)found[j], (long)wanted[j]);
            }
    }
    both_have(model, ends, sizeof model);
    if (!active && memcmp(words, ends, sizeof ends))
        fail("the words end as %lx, %lx", (long)words[0], (long)words[1]);
    meet();
}

/* A SEND that no receive waits for: it completes when one is posted. */
static void not_ready(int active, unsigned seed)
{
    if (active) {
        fill(source, 3000, seed);
        meet();
        post(IBV_WR_SEND, 1, source, 3000, target, 0, 0);
        completes(1, IBV_WC_SUCCESS);
    } else {
        struct ibv_wc wc;
        memset(target, CANARY, BUFFER);
        meet();
        double began = now();
        while (now() - began < 0.1) need(!ibv_poll_cq(cq, 1, &wc), "a completion of nothing");
        post_recv(7, target, 3000);
        completes(7, IBV_WC_SUCCESS);
        check(target, 3000, seed, 0);
    }
    meet();
}

/* What is forbidden fails with the error the specification has for it; each costs a queue pair. */
static void forbidden(int active, int which, enum ibv_wr_opcode op, uint32_t key, uint32_t offset, enum ibv_wc_status status)
{
    /* Kernel rxe sees a receive that is too short as one that is malformed. */
    int is_send = op == IBV_WR_SEND, rxe = active ? other.is_rxe : own.is_rxe;
    if (is_send && rxe) status = IBV_WC_REM_OP_ERR;
    if (active) {
        memset(source, which, BUFFER);
        meet();
        post(op, 5, source, 100, target + offset, key, 0);
        completes(5, status);
    } else {
        memset(target, CANARY, BUFFER);
        if (is_send) post_recv(9, target, 50);
        meet();
        if (is_send) completes(9, rxe ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_LEN_ERR);
    }
    meet();
    if (!active && !is_send)
        for (int i = 0; i < 200; i++) if (target[i] != CANARY) fail("memory was written");
    destroy_qp();
    connect_qp();
}

static void round_of(int active, unsigned seed)
{
    static const struct { const char *name; enum ibv_wr_opcode op; int with_inline; } kinds[] = {
        {"SEND", IBV_WR_SEND, 0}, {"SEND with immediate", IBV_WR_SEND_WITH_IMM, 0}, {"inline SEND", IBV_WR_SEND, 1},
        {"WRITE with immediate", IBV_WR_RDMA_WRITE_WITH_IMM, 0}};
    for (int i = 0; i < (type == IBV_QPT_UD ? 3 : 4); i++) {
        doing = kinds[i].name;
        messages(active, kinds[i].op, seed + i, kinds[i].with_inline);
    }
    if (type == IBV_QPT_UD) return;
    doing = "WRITE";
    writes(active, seed + 10, 0);
    doing = "inline WRITE";
    writes(active, seed + 11, 1);
    if (type == IBV_QPT_UC) return;
    doing = "READ";
    reads(active, seed + 12);
    doing = "atomics";
    atomics(active, seed + 13);
    doing = "SEND to who is not ready";
    not_ready(active, seed + 14);
}

int main(int argc, char **argv)
{
    const char *device = NULL, *port = "18515";
    int option, rounds = 1;
    while ((option = getopt(argc, argv, "d:g:t:m:p:n:l")) != -1) switch (option) {
        case 'd': device = optarg; break;
        case 'g': gid_index = atoi(optarg); break;
        case 't': type = !strcmp(optarg, "uc") ? IBV_QPT_UC : !strcmp(optarg, "ud") ? IBV_QPT_UD : IBV_QPT_RC; break;
        case 'm': mtu = IBV_MTU_256; for (int m = atoi(optarg); m > 256; m /= 2) mtu++; break;
        case 'p': port = optarg; break;
        case 'n': rounds = atoi(optarg); break;
        case 'l': lossy = 1; break;
        default: return 64;
    }
    const char *host = argv[optind];
    open_device(device);
    control = meet_by_tcp(host, port);
    connect_qp();
    for (int i = 0; i < rounds; i++) {
        round_of(!!host, 100 * i);
        round_of(!host, 100 * i + 50);
    }
    /* Who refuses says so once, and rxe does not again when that is lost. */
    if (type == IBV_QPT_RC && !lossy)
        for (int i = 0; i < 2; i++) {
            int active = i ? !host : !!host;
            doing = "SEND that is too long";
            forbidden(active, 1, IBV_WR_SEND, 0, 0, IBV_WC_REM_INV_REQ_ERR);
            doing = "WRITE with a wrong key";
            forbidden(active, 2, IBV_WR_RDMA_WRITE, other.rkey + 0x100, 0, IBV_WC_REM_ACCESS_ERR);
            doing = "READ beyond the region";
            forbidden(active, 3, IBV_WR_RDMA_READ, other.rkey, BUFFER - 50, IBV_WC_REM_ACCESS_ERR);
        }
    doing = "the end";
    destroy_qp();
    meet();
    printf("exchange: all right\n");
    return 0;
}
