/* What ids of rdma_cm do on a device, step by step: run by tests/interop.sh with each library, whose outputs are compared.
 *
 *   ids ADDRESS PORT
 *
 * One process is both ends, on the device that has the address. What differs from run to run (numbers of queue pairs, of ports)
 * is not printed.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZE = 256 };

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener;
static char data[2 * SIZE];
static const char *address, *port;

/* The result of a call, and why it failed. */
static int told(const char *what, int result)
{
	int error = result ? errno : 0;
	printf("%s: %d%s%s\n", what, result, error ? ", " : "", error ? strerror(error) : "");
	return result;
}

#define DO(call) told(#call, call)
#define NEED(what)                                                                                                         \
	do {                                                                                                               \
		if (!(what)) {                                                                                             \
			printf("%d: %s: %s\n", __LINE__, #what, strerror(errno));                                          \
			exit(1);                                                                                           \
		}                                                                                                          \
	} while (0)

static struct sockaddr *given(const char *service)
{
	static struct sockaddr_storage out;
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV }, *found;
	NEED(getaddrinfo(address, service, &hints, &found) == 0);
	memcpy(&out, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
	return (struct sockaddr *)&out;
}

/* The next event, of that kind; its id. What the events are that come is printed. */
static struct rdma_cm_id *next(struct rdma_event_channel *of, enum rdma_cm_event_type kind)
{
	for (;;) {
		struct rdma_cm_event *event;
		NEED(rdma_get_cm_event(of, &event) == 0);
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type came = event->event;
		/* Told to one end after the other, in either order. */
		if (came == kind) {
			printf("%s, status %d, %s", rdma_event_str(came), event->status, event->listen_id ? "of a listener" : "of its own");
			if (came == RDMA_CM_EVENT_CONNECT_REQUEST || came == RDMA_CM_EVENT_ESTABLISHED || came == RDMA_CM_EVENT_CONNECT_RESPONSE)
				printf(", retries %d, %d, srq %d, depths %d, %d", event->param.conn.retry_count,
				       event->param.conn.rnr_retry_count, event->param.conn.srq, event->param.conn.responder_resources,
				       event->param.conn.initiator_depth);
			if (event->param.conn.private_data_len)
				printf(", %.12s", (const char *)event->param.conn.private_data);
			printf("\n");
		}
		NEED(rdma_ack_cm_event(event) == 0);
		if (came == kind)
			return id;
	}
}

static struct rdma_cm_id *resolved(void)
{
	struct rdma_cm_id *id;
	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_resolve_addr(id, NULL, given(port), 2000) == 0);
	next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	NEED(rdma_resolve_route(id, 2000) == 0);
	next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static void show_ece(const char *whose, struct rdma_cm_id *id)
{
	struct ibv_ece ece = { 0 };
	int result = rdma_get_remote_ece(id, &ece);
	printf("%s peer's ECE: %d, vendor %#x, options %#x\n", whose, result, ece.vendor_id, ece.options);
}

/* A queue pair, in one of the ways that there are. */
static void equip(struct rdma_cm_id *id, int way)
{
	struct ibv_qp_init_attr plain = { .cap = { 4, 4, 2, 2, 16 }, .qp_type = IBV_QPT_RC, .qp_context = id };
	struct ibv_qp_init_attr_ex more = { .cap = { 4, 4, 2, 2, 16 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 8, .max_sge = 1 } };
	if (way == 0)
		DO(rdma_create_qp(id, NULL, &plain));
	if (way == 1) {
		more.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, more.pd = id->pd;
		more.send_ops_flags = IBV_QP_EX_WITH_SEND;
		DO(rdma_create_qp_ex(id, &more));
		printf("extended: %d\n", id->qp && ibv_qp_to_qp_ex(id->qp));
	}
	if (way == 2) {
		DO(rdma_create_srq(id, NULL, &shared));
		DO(rdma_create_qp(id, id->pd, &plain));
		printf("shared: %d\n", id->qp && id->srq && id->qp->srq == id->srq);
	}
	if (way == 3) {
		/* Nothing but the queue pair's own fields. */
		more.comp_mask = 0;
		DO(rdma_create_qp_ex(id, &more));
	}
	printf("queues: %d %d, channels %d %d\n", !!id->send_cq, !!id->recv_cq, !!id->send_cq_channel, !!id->recv_cq_channel);
	DO(rdma_create_qp(id, NULL, &plain));
}

static void one_message(struct rdma_cm_id *from, struct rdma_cm_id *to)
{
	struct ibv_mr *sent = rdma_reg_msgs(from, data, SIZE), *received = rdma_reg_msgs(to, data + SIZE, SIZE);
	struct ibv_wc wc;
	NEED(sent && received);
	memset(data, 'a' + rand() % 26, SIZE);
	NEED(rdma_post_recv(to, NULL, data + SIZE, SIZE, received) == 0);
	NEED(rdma_post_send(from, NULL, data, SIZE, sent, IBV_SEND_SIGNALED) == 0);
	printf("sent: %d, %s\n", rdma_get_send_comp(from, &wc), ibv_wc_status_str(wc.status));
	printf("received: %d, %s, %u bytes, %s\n", rdma_get_recv_comp(to, &wc), ibv_wc_status_str(wc.status), wc.byte_len,
	       memcmp(data, data + SIZE, SIZE) ? "others" : "the same");
	NEED(rdma_dereg_mr(sent) == 0 && rdma_dereg_mr(received) == 0);
}

static void release(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	if (id->srq)
		rdma_destroy_srq(id);
	printf("left: %d %d %d\n", !!id->qp, !!id->srq, !!id->send_cq);
	DO(rdma_destroy_id(id));
}

static void connections(void)
{
	for (int way = 0; way < 4; way++) {
		printf("-- connection %d\n", way);
		struct rdma_cm_id *active = resolved(), *passive;
		struct ibv_ece own = { .vendor_id = 0x1234, .options = 0x50 + way }, others = { .vendor_id = 0x1234, .options = 0x10 };
		struct rdma_conn_param ask = { .retry_count = 5, .rnr_retry_count = 6, .initiator_depth = 2, .responder_resources = 3,
			.private_data = "from client", .private_data_len = 12 };
		struct rdma_conn_param answer = { .rnr_retry_count = 4, .initiator_depth = 1, .responder_resources = 1,
			.private_data = "from server", .private_data_len = 12 };
		equip(active, way);
		if (way)
			DO(rdma_set_local_ece(active, &own));
		NEED(rdma_connect(active, &ask) == 0);
		passive = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		show_ece("server's", passive);
		equip(passive, 3 - way);
		if (way > 1)
			DO(rdma_set_local_ece(passive, &others));
		NEED(rdma_accept(passive, &answer) == 0);
		NEED(next(channel, RDMA_CM_EVENT_ESTABLISHED));
		NEED(next(channel, RDMA_CM_EVENT_ESTABLISHED));
		show_ece("client's", active);
		one_message(active, passive);
		one_message(passive, active);
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;
		NEED(ibv_query_qp(active->qp, &attr, IBV_QP_STATE | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT, &init) == 0);
		printf("state %d, retries %d %d\n", attr.qp_state, attr.retry_cnt, attr.rnr_retry);
		DO(rdma_disconnect(way % 2 ? active : passive));
		next(channel, RDMA_CM_EVENT_DISCONNECTED);
		release(active);
		release(passive);
	}
}

static void refusals(void)
{
	printf("-- refusals\n");
	for (int way = 0; way < 3; way++) {
		struct rdma_cm_id *active = resolved(), *passive;
		struct rdma_conn_param ask = { .retry_count = 5 };
		equip(active, 0);
		NEED(rdma_connect(active, &ask) == 0);
		passive = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		if (way == 0)
			DO(rdma_reject(passive, "no", 3));
		if (way == 1)
			DO(rdma_reject_ece(passive, "other options", 14));
		if (way == 2)
			DO(rdma_destroy_id(passive));
		next(channel, RDMA_CM_EVENT_REJECTED);
		if (way < 2)
			DO(rdma_destroy_id(passive));
		release(active);
	}
	struct rdma_cm_id *id;
	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	DO(rdma_listen(id, 0));
	DO(rdma_reject(id, NULL, 0));
	DO(rdma_disconnect(id));
	DO(rdma_destroy_id(id));
}

/* By hand: the program has the queue pair, and moves it. */
static void by_hand(void)
{
	printf("-- by hand\n");
	struct rdma_cm_id *active = resolved(), *passive;
	struct rdma_conn_param ask = { .retry_count = 5, .initiator_depth = 1, .responder_resources = 1 };
	struct ibv_cq *cq = ibv_create_cq(active->verbs, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp[2] = { ibv_create_qp(active->pd, &init), ibv_create_qp(active->pd, &init) };
	struct ibv_ece own = { .vendor_id = 0x77, .options = 7 };
	struct ibv_qp_attr attr;
	int mask;
	NEED(cq && qp[0] && qp[1]);
	ask.qp_num = qp[0]->qp_num;
	DO(rdma_set_local_ece(active, &own));
	NEED(rdma_connect(active, &ask) == 0);
	passive = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	show_ece("server's", passive);
	ask.qp_num = qp[1]->qp_num;
	for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		attr.qp_state = state;
		DO(rdma_init_qp_attr(passive, &attr, &mask));
		DO(ibv_modify_qp(qp[1], &attr, mask));
		printf("mask %#x\n", mask);
	}
	NEED(rdma_accept(passive, &ask) == 0);
	next(channel, RDMA_CM_EVENT_CONNECT_RESPONSE);
	for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		attr.qp_state = state;
		DO(rdma_init_qp_attr(active, &attr, &mask));
		DO(ibv_modify_qp(qp[0], &attr, mask));
		printf("mask %#x\n", mask);
	}
	DO(rdma_establish(active));
	next(channel, RDMA_CM_EVENT_ESTABLISHED);
	DO(rdma_notify(passive, IBV_EVENT_COMM_EST));
	DO(rdma_disconnect(active));
	next(channel, RDMA_CM_EVENT_DISCONNECTED);
	NEED(ibv_destroy_qp(qp[0]) == 0 && ibv_destroy_qp(qp[1]) == 0 && ibv_destroy_cq(cq) == 0);
	release(active);
	release(passive);
}

static void options(void)
{
	printf("-- options\n");
	struct rdma_cm_id *id, *other;
	uint8_t tos = 96, timeout = 17;
	int on = 1;
	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0 && rdma_create_id(channel, &other, NULL, RDMA_PS_TCP) == 0);
	DO(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos));
	DO(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &on, sizeof on));
	DO(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout));
	DO(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
	DO(rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
	DO(rdma_set_option(id, RDMA_OPTION_ID, 77, &on, sizeof on));
	DO(rdma_set_option(id, 5, 0, &on, sizeof on));
	DO(rdma_bind_addr(id, given("7490")));
	DO(rdma_bind_addr(id, given("7491")));
	DO(rdma_bind_addr(other, given("7490")));
	printf("port %d %d\n", ntohs(rdma_get_src_port(id)), ntohs(rdma_get_src_port(other)));
	DO(rdma_listen(id, 2));
	DO(rdma_listen(other, 2));
	DO(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof on));
	DO(rdma_destroy_id(id));
	DO(rdma_destroy_id(other));
	NEED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	DO(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout));
	NEED(rdma_resolve_addr(id, NULL, given(port), 2000) == 0);
	next(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	/* With an event of it outstanding on the old channel. */
	struct rdma_event_channel *second = rdma_create_event_channel();
	NEED(rdma_resolve_route(id, 2000) == 0);
	usleep(300000);
	DO(rdma_migrate_id(id, second));
	next(second, RDMA_CM_EVENT_ROUTE_RESOLVED);
	printf("there: %d\n", id->channel == second);
	/* Synchronous from here on. */
	DO(rdma_migrate_id(id, NULL));
	printf("its own: %d\n", id->channel && id->channel != second && id->channel != channel);
	DO(rdma_migrate_id(id, channel));
	DO(rdma_destroy_id(id));
	rdma_destroy_event_channel(second);
}

static void endpoints(void)
{
	printf("-- endpoints\n");
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found, *passive;
	struct ibv_qp_init_attr attr = { .cap = { 2, 2, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct rdma_cm_id *ep, *waiting;
	char buffer[64];
	NEED(rdma_getaddrinfo(address, port, &hints, &found) == 0);
	printf("family %d %d, type %d, space %#x, lengths %d %d, route %d, next %d\n", found->ai_family, found->ai_flags, found->ai_qp_type,
	       found->ai_port_space, (int)found->ai_src_len, (int)found->ai_dst_len, (int)found->ai_route_len, !!found->ai_next);
	NEED(getnameinfo(found->ai_dst_addr, found->ai_dst_len, buffer, sizeof buffer, NULL, 0, NI_NUMERICHOST) == 0);
	printf("to %s\n", buffer);
	DO(rdma_create_ep(&ep, found, NULL, &attr));
	printf("device %d, queue pair %d, channel %d\n", ep && ep->verbs, ep && ep->qp, ep && ep->channel);
	rdma_destroy_ep(ep);
	DO(rdma_create_ep(&ep, found, NULL, NULL));
	printf("device %d, queue pair %d\n", ep && ep->verbs, ep && ep->qp);
	rdma_destroy_ep(ep);
	rdma_freeaddrinfo(found);
	hints.ai_flags = RAI_PASSIVE;
	NEED(rdma_getaddrinfo(address, "7492", &hints, &passive) == 0);
	DO(rdma_create_ep(&waiting, passive, NULL, &attr));
	printf("device %d, queue pair %d\n", waiting && waiting->verbs, waiting && waiting->qp);
	DO(rdma_listen(waiting, 1));
	rdma_destroy_ep(waiting);
	rdma_freeaddrinfo(passive);
	DO(rdma_getaddrinfo("300.1.1.1", port, &hints, &found) != 0);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 64;
	address = argv[1], port = argv[2];
	setvbuf(stdout, NULL, _IOLBF, 0);
	NEED(channel = rdma_create_event_channel());
	NEED(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
	NEED(rdma_bind_addr(listener, given(port)) == 0 && rdma_listen(listener, 4) == 0);
	connections();
	refusals();
	by_hand();
	options();
	endpoints();
	DO(rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
	printf("done\n");
	return 0;
}
