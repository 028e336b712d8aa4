/* Raw packets: whole Ethernet frames, flow steering, work queues, counters. Each case makes a network namespace of its
 * own with a cable in it; at its other end the test itself sends and receives by a packet socket. Needs root. */
#define _GNU_SOURCE
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include "harness.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

enum { HEADERS = 42 };

static void command(const char *line)
{
	if (system(line)) {
		fprintf(stderr, "%s: needs root and iproute2\n", line);
		exit(1);
	}
}

static int peer;

/* A packet socket on the other end. */
static int open_peer(void)
{
	int fd = socket(AF_PACKET, SOCK_RAW, 0);
	CHECK(fd >= 0);
	struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL),
		.sll_ifindex = if_nametoindex("vb") };
	EQUAL(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
	return fd;
}

/* A device on one end of a cable. */
static struct side start(void)
{
	setenv("IRONVERBS_INTERFACES", "va", 1);
	if (unshare(CLONE_NEWNET)) {
		perror("unshare (needs root)");
		exit(1);
	}
	command("ip link set lo up && ip link add va address 02:00:00:00:00:0a type veth peer name vb address 02:00:00:00:00:0b && "
		"ip address add 10.9.0.1/24 dev va && ip address add 10.8.0.2/24 dev vb && "
		"sysctl -qw net.ipv6.conf.va.disable_ipv6=1 net.ipv6.conf.vb.disable_ipv6=1 && "
		"ip link set va up && ip link set vb up");
	peer = open_peer();
	return side_on(open_first());
}

static void ready(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT), 0);
	EQUAL(to_state(qp, IBV_QPS_RTR), 0);
	EQUAL(to_state(qp, IBV_QPS_RTS), 0);
}

static struct side another(struct side *s)
{
	struct side other = *s;
	other.cq = ibv_create_cq(s->context, 64, NULL, NULL, 0);
	make_qp(&other, IBV_QPT_RAW_PACKET);
	ready(other.qp);
	return other;
}

/* A frame of UDP over IPv4 from 10.8.0.2 to 10.9.0.1, without checksums. */
static size_t frame(char *to, uint8_t from, uint16_t port, const char *text)
{
	size_t len = HEADERS + strlen(text);
	memset(to, 0, len);
	memcpy(to, "\x02\0\0\0\0\x0a\x02\0\0\0\0\x0b\x08\0\x45", 15);
	*(uint16_t *)(to + 16) = htons(len - 14);
	memcpy(to + 22, "\x40\x11\0\0\x0a\x08\0\x02\x0a\x09\0\x01", 12);
	to[29] = from;
	*(uint16_t *)(to + 34) = htons(1000);
	*(uint16_t *)(to + 36) = htons(port);
	*(uint16_t *)(to + 38) = htons(len - 34);
	memcpy(to + HEADERS, text, strlen(text));
	return len;
}

static void from_peer(uint8_t host, uint16_t port, const char *text)
{
	char bytes[2000];
	size_t len = frame(bytes, host, port, text);
	EQUAL(send(peer, bytes, len, 0), (ssize_t)len);
}

/* The next frame that comes to the other end of that length. */
static void at_peer(char *into, size_t len)
{
	char bytes[2000];
	struct sockaddr_ll from;
	for (;;) {
		socklen_t size = sizeof from;
		ssize_t n = recvfrom(peer, bytes, sizeof bytes, 0, (struct sockaddr *)&from, &size);
		CHECK(n > 0);
		if (from.sll_pkttype != PACKET_OUTGOING && n == (ssize_t)len)
			break;
	}
	memcpy(into, bytes, len);
}

static uint16_t sum(const void *bytes, size_t len, uint32_t sum)
{
	const uint8_t *b = bytes;
	for (size_t i = 0; i < len; i += 2)
		sum += b[i] << 8 | (i + 1 < len ? b[i + 1] : 0);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

static uint16_t sum_of_udp(const char *frame, size_t len)
{
	return sum(frame + 34, len - 34, 17 + len - 34 + sum(frame + 26, 8, 0));
}

/* A rule and room for its specifications. */
struct rule {
	struct ibv_flow_attr attr;
	char specs[256];
	size_t len;
};

static struct rule rule(enum ibv_flow_attr_type type, uint16_t priority)
{
	return (struct rule){ .attr = { .type = type, .priority = priority, .port = 1, .size = sizeof(struct ibv_flow_attr) } };
}

static void add_spec(struct rule *rule, const void *spec, size_t size)
{
	memcpy((char *)&rule->attr + sizeof rule->attr + rule->len, spec, size);
	rule->len += size;
	rule->attr.size += size;
	rule->attr.num_of_specs++;
}

static struct rule to_port(uint16_t priority, uint16_t port)
{
	struct rule new = rule(IBV_FLOW_ATTR_NORMAL, priority);
	struct ibv_flow_spec_tcp_udp udp = { .type = IBV_FLOW_SPEC_UDP, .size = sizeof udp,
		.val.dst_port = htons(port), .mask.dst_port = port ? 0xffff : 0 };
	add_spec(&new, &udp, sizeof udp);
	return new;
}

static struct ibv_flow *flow(struct ibv_qp *qp, struct rule *rule)
{
	struct ibv_flow *made = ibv_create_flow(qp, &rule->attr);
	CHECK(made);
	return made;
}

static void frames_both_ways(void)
{
	struct side s = start();
	make_qp(&s, IBV_QPT_RAW_PACKET);
	EQUAL(s.qp->state, IBV_QPS_RESET);
	ready(s.qp);
	struct rule to_us = rule(IBV_FLOW_ATTR_NORMAL, 0);
	struct ibv_flow_spec_eth eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof eth,
		.val.dst_mac = { 2, 0, 0, 0, 0, 10 }, .mask.dst_mac = { 255, 255, 255, 255, 255, 255 } };
	add_spec(&to_us, &eth, sizeof eth);
	struct ibv_flow *in = flow(s.qp, &to_us);
	EQUAL(ibv_destroy_qp(s.qp), EBUSY);
	/* In, scattered over two elements. */
	struct ibv_sge into[2] = { part(&s, 0, 20), part(&s, 100, 200) };
	struct ibv_recv_wr recv = { .wr_id = 5, .sg_list = into, .num_sge = 2 }, *bad;
	char bytes[2000];
	for (int right = 0; right < 2; right++) {
		EQUAL(ibv_post_recv(s.qp, &recv, &bad), 0);
		size_t len = frame(bytes, 2, 7, "hello");
		if (right) {
			*(uint16_t *)(bytes + 24) = htons(~sum(bytes + 14, 20, 0));
			*(uint16_t *)(bytes + 40) = htons(~sum_of_udp(bytes, len));
		}
		EQUAL(send(peer, bytes, len, 0), (ssize_t)len);
		struct ibv_wc wc = expect(s.cq, 5, IBV_WC_SUCCESS);
		EQUAL(wc.opcode, IBV_WC_RECV);
		EQUAL(wc.byte_len, len);
		EQUAL(wc.qp_num, s.qp->qp_num);
		EQUAL(wc.wc_flags, right ? IBV_WC_IP_CSUM_OK : 0);
		EQUAL(memcmp(s.memory, bytes, 20), 0);
		EQUAL(memcmp(s.memory + 100, bytes + 20, len - 20), 0);
	}
	/* Out, gathered from three, and inline; with checksums where they are asked for. */
	for (int how = 0; how < 4; how++) {
		char *from = s.memory + 1000;
		size_t len = frame(from, 2, 7, how & 1 ? "odd" : "even");
		struct ibv_sge list[3] = { part(&s, 1000, 13), part(&s, 1013, 1), part(&s, 1014, len - 14) };
		struct ibv_send_wr wr = send_of(list, IBV_WR_SEND);
		wr.num_sge = 3;
		wr.send_flags |= (how & 2 ? IBV_SEND_IP_CSUM : 0) | (how == 1 ? IBV_SEND_INLINE : 0);
		EQUAL(post(&s, &wr), 0);
		EQUAL(expect(s.cq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_SEND);
		at_peer(bytes, len);
		if (how & 2) {
			EQUAL(sum(bytes + 14, 20, 0), 0xffff);
			EQUAL(sum_of_udp(bytes, len), 0xffff);
			bytes[24] = bytes[25] = bytes[40] = bytes[41] = 0;
		}
		EQUAL(memcmp(bytes, from, len), 0);
	}
	EQUAL(ibv_destroy_flow(in), 0);
	/* Nothing comes any more. */
	EQUAL(ibv_post_recv(s.qp, &recv, &bad), 0);
	from_peer(2, 7, "too late");
	pause_ms(20);
	expect_none(s.cq);
	EQUAL(ibv_destroy_qp(s.qp), 0);
}

/* By ibv_wr_*, to another queue pair of the same device: as an adapter's, they hear each other. */
static void builders_and_neighbours(void)
{
	struct side s = start();
	struct ibv_qp_init_attr plain = qp_init(&s, IBV_QPT_RAW_PACKET);
	struct ibv_qp_init_attr_ex init = { .send_cq = s.cq, .recv_cq = s.cq, .cap = plain.cap,
		.qp_type = IBV_QPT_RAW_PACKET, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = s.pd, .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE };
	errno = 0;
	CHECK(!ibv_create_qp_ex(s.context, &init) && errno == EOPNOTSUPP);
	init.send_ops_flags = IBV_QP_EX_WITH_SEND;
	s.qp = ibv_create_qp_ex(s.context, &init);
	CHECK(s.qp);
	ready(s.qp);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(s.qp);
	CHECK(ex);
	struct side other = another(&s);
	CHECK(!ibv_qp_to_qp_ex(other.qp));
	struct rule rule = to_port(0, 9);
	flow(other.qp, &rule);
	for (int i = 0; i < 3; i++)
		EQUAL(post_recv(&other, 10 + i, 4096 * i, 200), 0);
	char bytes[200];
	size_t len = frame(bytes, 2, 9, "abc");
	memcpy(s.memory + 100000, bytes, len);
	ibv_wr_start(ex);
	ex->wr_id = 1, ex->wr_flags = 0;
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, s.mr->lkey, (uintptr_t)s.memory + 100000, len);
	ex->wr_id = 2, ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, bytes, len);
	EQUAL(ibv_wr_complete(ex), 0);
	expect(s.cq, 2, IBV_WC_SUCCESS);
	for (int i = 0; i < 2; i++) {
		EQUAL(expect(other.cq, 10 + i, IBV_WC_SUCCESS).byte_len, len);
		EQUAL(memcmp(s.memory + 4096 * i, bytes, len), 0);
	}
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_abort(ex);
	/* What the kernel sends from here is nobody's. */
	command("ip neighbour add 10.9.0.9 lladdr 02:00:00:00:00:0b dev va");
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(0x0a090009) };
	EQUAL(sendto(fd, "abc", 3, 0, (struct sockaddr *)&to, sizeof to), 3);
	pause_ms(20);
	expect_none(other.cq);
}

static void flows_in_order(void)
{
	struct side s = start();
	struct side a = another(&s), b = another(&s), c = another(&s);
	for (int i = 0; i < 8; i++) {
		EQUAL(post_recv(&a, i, 4096 * i, 200), 0);
		EQUAL(post_recv(&b, i, 4096 * i, 200), 0);
		EQUAL(post_recv(&c, i, 4096 * i, 200), 0);
	}
	/* The lower number is asked first; of one number, who wants more. */
	struct rule any = to_port(5, 0), seven = to_port(5, 7), first = to_port(1, 8);
	struct ibv_flow *general = flow(a.qp, &any), *special = flow(b.qp, &seven), *early = flow(c.qp, &first);
	from_peer(2, 6, "a");
	expect(a.cq, 0, IBV_WC_SUCCESS);
	from_peer(2, 7, "b");
	expect(b.cq, 0, IBV_WC_SUCCESS);
	from_peer(2, 8, "c");
	expect(c.cq, 0, IBV_WC_SUCCESS);
	/* The same rule twice: a copy for each. */
	struct ibv_flow *copy = flow(c.qp, &seven);
	from_peer(2, 7, "both");
	expect(b.cq, 1, IBV_WC_SUCCESS);
	expect(c.cq, 1, IBV_WC_SUCCESS);
	EQUAL(ibv_destroy_flow(copy), 0);
	/* Passed on, and dropped. */
	struct rule passing = to_port(0, 7);
	passing.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
	struct ibv_flow *onward = flow(c.qp, &passing);
	from_peer(2, 7, "both");
	expect(b.cq, 2, IBV_WC_SUCCESS);
	expect(c.cq, 2, IBV_WC_SUCCESS);
	EQUAL(ibv_destroy_flow(onward), 0);
	struct rule dropping = to_port(0, 7);
	struct ibv_flow_spec_action_drop drop = { .type = IBV_FLOW_SPEC_ACTION_DROP, .size = sizeof drop };
	add_spec(&dropping, &drop, sizeof drop);
	struct ibv_flow *hole = flow(c.qp, &dropping);
	from_peer(2, 7, "nobody");
	from_peer(2, 6, "a");
	expect(a.cq, 1, IBV_WC_SUCCESS);
	expect_none(b.cq);
	expect_none(c.cq);
	EQUAL(ibv_destroy_flow(hole), 0);
	EQUAL(ibv_destroy_flow(general), 0);
	EQUAL(ibv_destroy_flow(special), 0);
	EQUAL(ibv_destroy_flow(early), 0);
	/* Who takes what is left, and who sees all. */
	struct rule all = rule(IBV_FLOW_ATTR_ALL_DEFAULT, 0), several = rule(IBV_FLOW_ATTR_MC_DEFAULT, 0),
		sniffer = rule(IBV_FLOW_ATTR_SNIFFER, 0);
	flow(a.qp, &all);
	flow(b.qp, &several);
	flow(c.qp, &sniffer);
	from_peer(2, 6, "a");
	expect(a.cq, 2, IBV_WC_SUCCESS);
	expect(c.cq, 3, IBV_WC_SUCCESS);
	char bytes[200];
	size_t len = frame(bytes, 2, 6, "several");
	bytes[0] |= 1;
	EQUAL(send(peer, bytes, len, 0), (ssize_t)len);
	expect(b.cq, 3, IBV_WC_SUCCESS);
	expect(c.cq, 4, IBV_WC_SUCCESS);
	expect_none(a.cq);
}

static void tags_and_counters(void)
{
	struct side s = start();
	struct ibv_cq_init_attr_ex init = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_FLOW_TAG };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(s.context, &init);
	CHECK(cq);
	s.cq = ibv_cq_ex_to_cq(cq);
	make_qp(&s, IBV_QPT_RAW_PACKET);
	ready(s.qp);
	struct ibv_counters *counters = ibv_create_counters(s.context, &(struct ibv_counters_init_attr){ 0 });
	CHECK(counters);
	uint64_t values[4];
	EQUAL(ibv_read_counters(counters, values, 4, 0), EINVAL);
	struct ibv_counter_attach_attr attach = { .counter_desc = IBV_COUNTER_BYTES, .index = 1 };
	EQUAL(ibv_attach_counters_point_flow(counters, &attach, NULL), 0);
	attach = (struct ibv_counter_attach_attr){ .counter_desc = IBV_COUNTER_PACKETS, .index = 2 };
	EQUAL(ibv_attach_counters_point_flow(counters, &attach, NULL), 0);
	struct rule rule = to_port(0, 7);
	struct ibv_flow_spec_action_tag tag = { .type = IBV_FLOW_SPEC_ACTION_TAG, .size = sizeof tag, .tag_id = 0x123456 };
	add_spec(&rule, &tag, sizeof tag);
	struct ibv_flow_spec_counter_action count = { .type = IBV_FLOW_SPEC_ACTION_COUNT, .size = sizeof count,
		.counters = counters };
	add_spec(&rule, &count, sizeof count);
	struct ibv_flow *in = flow(s.qp, &rule);
	EQUAL(ibv_destroy_counters(counters), EBUSY);
	for (int i = 0; i < 3; i++) {
		if (i == 2) {
			attach = (struct ibv_counter_attach_attr){ .counter_desc = IBV_COUNTER_PACKETS, .index = 3 };
			EQUAL(ibv_attach_counters_point_flow(counters, &attach, in), 0);
		}
		EQUAL(post_recv(&s, i, 0, 200), 0);
		from_peer(2, 7, "12345");
		while (ibv_start_poll(cq, &(struct ibv_poll_cq_attr){ 0 }) == ENOENT)
			;
		EQUAL(cq->status, IBV_WC_SUCCESS);
		EQUAL(ibv_wc_read_flow_tag(cq), 0x123456);
		EQUAL(ibv_wc_read_byte_len(cq), HEADERS + 5);
		ibv_end_poll(cq);
	}
	EQUAL(ibv_read_counters(counters, values, 4, IBV_READ_COUNTERS_ATTR_PREFER_CACHED), 0);
	EQUAL(values[0], 0);
	EQUAL(values[1], 3 * (HEADERS + 5));
	EQUAL(values[2], 3);
	EQUAL(values[3], 1);
	attach.index = 1 << 20;
	EQUAL(ibv_attach_counters_point_flow(counters, &attach, in), EINVAL);
	attach = (struct ibv_counter_attach_attr){ .counter_desc = 9 };
	EQUAL(ibv_attach_counters_point_flow(counters, &attach, in), EINVAL);
	EQUAL(ibv_read_counters(counters, values, 4, 8), EOPNOTSUPP);
	EQUAL(ibv_destroy_flow(in), 0);
	EQUAL(ibv_destroy_counters(counters), 0);
}

enum { QUEUES = 4 };

static struct ibv_wq *work_queue(struct side *s, struct ibv_cq *cq)
{
	struct ibv_wq_init_attr init = { .wq_context = s, .wq_type = IBV_WQT_RQ, .max_wr = 16, .max_sge = 2, .pd = s->pd, .cq = cq };
	struct ibv_wq *wq = ibv_create_wq(s->context, &init);
	CHECK(wq && wq->wq_context == s && wq->cq == cq && wq->pd == s->pd && wq->state == IBV_WQS_RESET);
	CHECK(init.max_wr >= 16 && init.max_sge >= 2);
	return wq;
}

static int wq_to(struct ibv_wq *wq, enum ibv_wq_state state)
{
	return ibv_modify_wq(wq, &(struct ibv_wq_attr){ .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = state });
}

static int post_wq(struct side *s, struct ibv_wq *wq, uint64_t id, uint32_t length)
{
	struct ibv_sge sge = part(s, 4096 * id, length);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	return ibv_post_wq_recv(wq, &wr, &bad);
}

static void spread_over_queues(void)
{
	struct side s = start();
	struct ibv_wq *queues[QUEUES];
	for (int i = 0; i < QUEUES; i++) {
		queues[i] = work_queue(&s, s.cq);
		EQUAL(post_wq(&s, queues[i], 0, 200), EINVAL);
		EQUAL(wq_to(queues[i], IBV_WQS_ERR), EINVAL);
		EQUAL(wq_to(queues[i], IBV_WQS_RDY), 0);
		EQUAL(queues[i]->state, IBV_WQS_RDY);
		for (int j = 0; j < 16; j++)
			EQUAL(post_wq(&s, queues[i], j, 200), 0);
		EQUAL(post_wq(&s, queues[i], 16, 200), ENOMEM);
	}
	struct ibv_rwq_ind_table_init_attr of = { .log_ind_tbl_size = 2, .ind_tbl = queues };
	struct ibv_rwq_ind_table *table = ibv_create_rwq_ind_table(s.context, &of);
	CHECK(table && table->context == s.context);
	EQUAL(ibv_destroy_wq(queues[0]), EBUSY);
	uint8_t key[40];
	for (int i = 0; i < 40; i++)
		key[i] = 37 * i + 11;
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_RAW_PACKET, .pd = s.pd, .rwq_ind_tbl = table,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE,
		.rx_hash_conf = { .rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ, .rx_hash_key_len = 40, .rx_hash_key = key,
			.rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_PORT_UDP } };
	struct ibv_qp *qp = ibv_create_qp_ex(s.context, &init);
	CHECK(qp);
	EQUAL(ibv_destroy_rwq_ind_table(table), EBUSY);
	struct ibv_recv_wr wr = { 0 }, *bad;
	EQUAL(ibv_post_recv(qp, &wr, &bad), EINVAL);
	struct ibv_send_wr out = { .opcode = IBV_WR_SEND }, *bad_out;
	EQUAL(ibv_post_send(qp, &out, &bad_out), EINVAL);
	struct rule rule = to_port(0, 0);
	struct ibv_flow *in = flow(qp, &rule);
	/* Who has the same source comes to the same queue, and not all come to one. */
	uint32_t of_source[12] = { 0 };
	unsigned seen = 0;
	for (int round = 0; round < 2; round++)
		for (int i = 0; i < 12; i++) {
			from_peer(i, 7, "x");
			struct ibv_wc wc = completion(s.cq);
			EQUAL(wc.status, IBV_WC_SUCCESS);
			EQUAL((uint8_t)s.memory[4096 * wc.wr_id + 29], i);
			CHECK(!round || of_source[i] == wc.qp_num);
			of_source[i] = wc.qp_num;
			for (int q = 0; q < QUEUES; q++)
				if (queues[q]->wq_num == wc.qp_num) {
					seen |= 1 << q;
					EQUAL(post_wq(&s, queues[q], wc.wr_id, 200), 0);
				}
		}
	CHECK(__builtin_popcount(seen) >= 3);
	/* A queue in error flushes; the others go on. */
	EQUAL(wq_to(queues[0], IBV_WQS_ERR), 0);
	for (int i = 0; i < 16; i++)
		EQUAL(completion(s.cq).status, IBV_WC_WR_FLUSH_ERR);
	EQUAL(post_wq(&s, queues[0], 3, 200), 0);
	expect(s.cq, 3, IBV_WC_WR_FLUSH_ERR);
	for (int i = 0; i < 12; i++)
		if (of_source[i] != queues[0]->wq_num) {
			from_peer(i, 7, "x");
			EQUAL(completion(s.cq).status, IBV_WC_SUCCESS);
			break;
		}
	EQUAL(ibv_destroy_flow(in), 0);
	EQUAL(ibv_destroy_qp(qp), 0);
	/* What is hashed, wrongly asked for. */
	init.rx_hash_conf.rx_hash_key_len = 39;
	errno = 0;
	CHECK(!ibv_create_qp_ex(s.context, &init) && errno == EINVAL);
	init.rx_hash_conf.rx_hash_key_len = 40;
	init.rx_hash_conf.rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_SRC_IPV6;
	CHECK(!ibv_create_qp_ex(s.context, &init) && errno == EINVAL);
	init.rx_hash_conf.rx_hash_fields_mask = IBV_RX_HASH_IPSEC_SPI;
	CHECK(!ibv_create_qp_ex(s.context, &init) && errno == EOPNOTSUPP);
	init.rx_hash_conf.rx_hash_fields_mask = 0;
	init.rx_hash_conf.rx_hash_function = 4;
	CHECK(!ibv_create_qp_ex(s.context, &init) && errno == EOPNOTSUPP);
	EQUAL(ibv_destroy_rwq_ind_table(table), 0);
	for (int i = 0; i < QUEUES; i++)
		EQUAL(ibv_destroy_wq(queues[i]), 0);
}

static void asked_wrongly(void)
{
	struct side s = start();
	make_qp(&s, IBV_QPT_RAW_PACKET);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	EQUAL(ibv_modify_qp(s.qp, &attr, IBV_QP_STATE), EINVAL);
	EQUAL(ibv_modify_qp(s.qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_QKEY), EINVAL);
	attr.port_num = 2;
	EQUAL(ibv_modify_qp(s.qp, &attr, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
	EQUAL(to_state(s.qp, IBV_QPS_RTS), EINVAL);
	EQUAL(post_recv(&s, 1, 0, 100), EINVAL);
	struct ibv_sge sge = part(&s, 0, 60);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND), *bad;
	EQUAL(post(&s, &wr), EINVAL);
	struct ibv_qp_attr now;
	struct ibv_qp_init_attr made;
	EQUAL(ibv_query_qp(s.qp, &now, IBV_QP_STATE, &made), 0);
	EQUAL(now.qp_state, IBV_QPS_RESET);
	EQUAL(made.qp_type, IBV_QPT_RAW_PACKET);
	CHECK(made.send_cq == s.cq && made.cap.max_send_wr >= 16);
	ready(s.qp);
	wr.opcode = IBV_WR_RDMA_WRITE;
	EQUAL(post(&s, &wr), EINVAL);
	wr.opcode = IBV_WR_SEND;
	wr.num_sge = 99;
	EQUAL(ibv_post_send(s.qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
	union ibv_gid group = { .raw = { 0xff } };
	CHECK(ibv_attach_mcast(s.qp, &group, 0));
	/* Rules. */
	struct rule good = to_port(0, 7), wrong = good;
#define WRONG(code) do { errno = 0; CHECK(!ibv_create_flow(s.qp, &wrong.attr)); EQUAL(errno, code); wrong = good; } while (0)
	wrong.attr.port = 0;
	WRONG(EINVAL);
	wrong.attr.port = 2;
	WRONG(EINVAL);
	wrong.attr.type = 9;
	WRONG(EINVAL);
	wrong.attr.comp_mask = 1;
	WRONG(EINVAL);
	wrong.attr.flags = 1 << 9;
	WRONG(EINVAL);
	wrong.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS;
	WRONG(EOPNOTSUPP);
	wrong.attr.num_of_specs = 0;
	WRONG(EINVAL);
	wrong.attr.type = IBV_FLOW_ATTR_SNIFFER;
	WRONG(EINVAL);
	((struct ibv_flow_spec *)wrong.specs)->hdr.size = 15;
	WRONG(EINVAL);
	((struct ibv_flow_spec *)wrong.specs)->hdr.size = 0;
	WRONG(EINVAL);
	((struct ibv_flow_spec *)wrong.specs)->hdr.type = 0x77;
	WRONG(EINVAL);
	((struct ibv_flow_spec *)wrong.specs)->hdr.type = IBV_FLOW_SPEC_GRE;
	WRONG(EOPNOTSUPP);
	struct ibv_flow_spec_tcp_udp tcp = { .type = IBV_FLOW_SPEC_TCP, .size = sizeof tcp };
	add_spec(&wrong, &tcp, sizeof tcp);
	WRONG(EINVAL);
	struct side rc = s;
	make_qp(&rc, IBV_QPT_RC);
	errno = 0;
	CHECK(!ibv_create_flow(rc.qp, &good.attr) && errno == EINVAL);
	/* Tables and queues. */
	struct ibv_wq_init_attr init = { .max_wr = 0, .max_sge = 1, .pd = s.pd, .cq = s.cq };
	CHECK(!ibv_create_wq(s.context, &init) && errno == EINVAL);
	init.max_wr = 1 << 30;
	CHECK(!ibv_create_wq(s.context, &init) && errno == EINVAL);
	init.max_wr = 1, init.wq_type = 5;
	CHECK(!ibv_create_wq(s.context, &init) && errno == EINVAL);
	init.wq_type = IBV_WQT_RQ, init.comp_mask = IBV_WQ_INIT_ATTR_FLAGS, init.create_flags = IBV_WQ_FLAGS_DELAY_DROP;
	CHECK(!ibv_create_wq(s.context, &init) && errno == EOPNOTSUPP);
	struct ibv_rwq_ind_table_init_attr table = { .log_ind_tbl_size = 30, .ind_tbl = NULL };
	CHECK(!ibv_create_rwq_ind_table(s.context, &table) && errno == EINVAL);
	/* All that was refused has changed nothing. */
	flow(s.qp, &good);
	EQUAL(post_recv(&s, 1, 0, 100), 0);
	from_peer(2, 7, "works");
	expect(s.cq, 1, IBV_WC_SUCCESS);
}

/* Without the right to open packet sockets. */
static void without_the_right(void)
{
	struct side s = start();
	struct side other = another(&s);
	EQUAL(seteuid(65534), 0);
	struct ibv_qp_init_attr init = qp_init(&s, IBV_QPT_RAW_PACKET);
	errno = 0;
	CHECK(!ibv_create_qp(s.pd, &init) && errno == EPERM);
	struct rule rule = to_port(0, 7);
	errno = 0;
	CHECK(!ibv_create_flow(other.qp, &rule.attr) && errno == EPERM);
	EQUAL(seteuid(0), 0);
	flow(other.qp, &rule);
	/* Nothing else needs it. */
	make_qp(&s, IBV_QPT_RC);
}

static void errors_and_flushes(void)
{
	struct side s = start();
	make_qp(&s, IBV_QPT_RAW_PACKET);
	ready(s.qp);
	struct rule rule = to_port(0, 7);
	flow(s.qp, &rule);
	char bytes[200];
	size_t len = frame(bytes, 2, 7, "before");
	memcpy(s.memory, bytes, len);
	/* The one before the wrong one goes out and is complete; those behind it flush. */
	struct ibv_sge right = part(&s, 0, len), beyond = part(&s, MEMORY - 10, 60), tiny = part(&s, 0, 9), huge = part(&s, 0, 5000);
	struct { struct ibv_sge *sge; enum ibv_wc_status status; } wrong[] = {
		{ &beyond, IBV_WC_LOC_PROT_ERR }, { &tiny, IBV_WC_LOC_QP_OP_ERR }, { &huge, IBV_WC_LOC_LEN_ERR } };
	for (int i = 0; i < 3; i++) {
		EQUAL(post_recv(&s, 9, 4096, 200), 0);
		struct ibv_send_wr third = send_of(&right, IBV_WR_SEND), second = send_of(wrong[i].sge, IBV_WR_SEND),
			first = send_of(&right, IBV_WR_SEND);
		first.next = &second, second.next = &third;
		second.wr_id = 2, second.send_flags = 0, third.wr_id = 3;
		EQUAL(post(&s, &first), 0);
		struct ibv_wc wc[4];
		for (int n = 0; n < 4; n++)
			wc[n] = completion(s.cq);
		/* The receive is flushed, or has the frame that was sent: it heard itself. */
		int order[4], n = 0;
		for (int j = 0; j < 4; j++)
			if (wc[j].wr_id != 9)
				order[n++] = j;
		EQUAL(n, 3);
		EQUAL(wc[order[0]].status, IBV_WC_SUCCESS);
		EQUAL(wc[order[1]].status, wrong[i].status);
		EQUAL(wc[order[1]].wr_id, 2);
		CHECK(wc[order[1]].vendor_err != 0);
		EQUAL(wc[order[2]].status, IBV_WC_WR_FLUSH_ERR);
		EQUAL(to_state(s.qp, IBV_QPS_RESET), 0);
		expect_none(s.cq);
		ready(s.qp);
	}
	/* Too small a receive ends the queue. */
	EQUAL(post_recv(&s, 4, 0, 20), 0);
	EQUAL(post_recv(&s, 5, 0, 200), 0);
	from_peer(2, 7, "long");
	expect(s.cq, 4, IBV_WC_LOC_LEN_ERR);
	expect(s.cq, 5, IBV_WC_WR_FLUSH_ERR);
	struct ibv_qp_attr now;
	struct ibv_qp_init_attr made;
	do {
		EQUAL(ibv_query_qp(s.qp, &now, IBV_QP_STATE, &made), 0);
	} while (now.qp_state != IBV_QPS_ERR);
	EQUAL(to_state(s.qp, IBV_QPS_RESET), 0);
	ready(s.qp);
	/* The queue holds what it was made for, until completions are read. */
	struct ibv_send_wr wr = send_of(&right, IBV_WR_SEND);
	for (int i = 0; i < (int)made.cap.max_send_wr; i++)
		EQUAL(post(&s, &wr), 0);
	EQUAL(post(&s, &wr), ENOMEM);
	expect(s.cq, 1, IBV_WC_SUCCESS);
	EQUAL(post(&s, &wr), 0);
}

/* What the kernel sends comes as on a cable: with its checksums, and cut. */
static void frames_of_the_kernel(void)
{
	struct side s = start();
	make_qp(&s, IBV_QPT_RAW_PACKET);
	ready(s.qp);
	struct rule rule = to_port(0, 7);
	flow(s.qp, &rule);
	command("ip route add 10.9.1.0/24 dev vb && ip neighbour add 10.9.1.1 lladdr 02:00:00:00:00:0a dev vb && "
		"sysctl -qw net.ipv4.conf.all.rp_filter=0");
	int fd = socket(AF_INET, SOCK_DGRAM, 0), size = 500;
	EQUAL(setsockopt(fd, SOL_UDP, UDP_SEGMENT, &size, sizeof size), 0);
	for (int i = 0; i < 3; i++)
		EQUAL(post_recv(&s, i, 4096 * i, 2000), 0);
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7), .sin_addr.s_addr = htonl(0x0a090101) };
	char data[1200];
	for (int i = 0; i < 1200; i++)
		data[i] = i * 7;
	EQUAL(sendto(fd, data, sizeof data, 0, (struct sockaddr *)&to, sizeof to), 1200);
	for (int i = 0; i < 3; i++) {
		struct ibv_wc wc = expect(s.cq, i, IBV_WC_SUCCESS);
		size_t part = i < 2 ? 500 : 200;
		EQUAL(wc.byte_len, HEADERS + part);
		EQUAL(wc.wc_flags, IBV_WC_IP_CSUM_OK);
		EQUAL(sum(s.memory + 4096 * i + 14, 20, 0), 0xffff);
		EQUAL(sum_of_udp(s.memory + 4096 * i, HEADERS + part), 0xffff);
		EQUAL(memcmp(s.memory + 4096 * i + HEADERS, data + 500 * i, part), 0);
	}
}

/* Frames that come faster than receives are posted wait a little. */
static void frames_wait_for_receives(void)
{
	struct side s = start();
	make_qp(&s, IBV_QPT_RAW_PACKET);
	ready(s.qp);
	struct rule rule = to_port(0, 7);
	flow(s.qp, &rule);
	EQUAL(post_recv(&s, 0, 0, 200), 0);
	for (int i = 0; i < 200; i++)
		from_peer(i, 7, "x");
	int got = 0;
	while (got < 200) {
		struct ibv_wc wc;
		if (ibv_poll_cq(s.cq, 1, &wc) == 1) {
			EQUAL(wc.status, IBV_WC_SUCCESS);
			if ((uint8_t)s.memory[29] != got)
				break;
			got++;
			EQUAL(post_recv(&s, 0, 0, 200), 0);
		}
	}
	/* A busy machine may take the moment away; most come. */
	CHECK(got >= 2);
}

static void the_device_goes(void)
{
	struct side s = start();
	make_qp(&s, IBV_QPT_RAW_PACKET);
	ready(s.qp);
	struct rule rule = to_port(0, 7);
	struct ibv_flow *in = flow(s.qp, &rule);
	struct ibv_wq *wq = work_queue(&s, s.cq);
	EQUAL(wq_to(wq, IBV_WQS_RDY), 0);
	EQUAL(post_recv(&s, 1, 0, 200), 0);
	EQUAL(post_wq(&s, wq, 2, 200), 0);
	command("ip link delete va");
	struct ibv_wc one = completion(s.cq), two = completion(s.cq);
	EQUAL(one.status, IBV_WC_WR_FLUSH_ERR);
	EQUAL(two.status, IBV_WC_WR_FLUSH_ERR);
	EQUAL(one.wr_id + two.wr_id, 3);
	struct ibv_sge sge = part(&s, 0, 60);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	EQUAL(post(&s, &wr), EIO);
	EQUAL(post_recv(&s, 1, 0, 200), EIO);
	errno = 0;
	CHECK(!ibv_create_flow(s.qp, &rule.attr) && errno == EIO);
	EQUAL(ibv_destroy_flow(in), 0);
	EQUAL(ibv_destroy_qp(s.qp), 0);
	EQUAL(ibv_destroy_wq(wq), 0);
	EQUAL(ibv_close_device(s.context), 0);
}

/* Everything is left behind: closing the device ends it. */
static void left_behind(void)
{
	struct side s = start();
	for (int i = 0; i < 50; i++) {
		struct side open = side_on(open_first());
		make_qp(&open, IBV_QPT_RAW_PACKET);
		ready(open.qp);
		struct rule rule = to_port(0, 7);
		flow(open.qp, &rule);
		struct ibv_wq *wq = work_queue(&open, open.cq);
		struct ibv_rwq_ind_table_init_attr of = { .ind_tbl = &wq };
		CHECK(ibv_create_rwq_ind_table(open.context, &of));
		CHECK(ibv_create_counters(open.context, &(struct ibv_counters_init_attr){ 0 }));
		EQUAL(ibv_close_device(open.context), 0);
		free(open.memory);
	}
	make_qp(&s, IBV_QPT_RAW_PACKET);
	ready(s.qp);
	struct rule rule = to_port(0, 7);
	flow(s.qp, &rule);
	EQUAL(post_recv(&s, 1, 0, 200), 0);
	from_peer(2, 7, "still");
	expect(s.cq, 1, IBV_WC_SUCCESS);
}

static const struct test tests[] = {
	TEST(frames_both_ways),
	TEST(builders_and_neighbours),
	TEST(flows_in_order),
	TEST(tags_and_counters),
	TEST(spread_over_queues),
	TEST(asked_wrongly),
	TEST(without_the_right),
	TEST(errors_and_flushes),
	TEST(frames_of_the_kernel),
	TEST(frames_wait_for_receives),
	TEST(the_device_goes),
	TEST(left_behind),
};
MAIN(tests)
