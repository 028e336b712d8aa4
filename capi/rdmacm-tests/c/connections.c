/* Connections, both ends in one process, each with an event channel. */
#define _GNU_SOURCE
#include <semaphore.h>
#include <signal.h>
#include <sys/prctl.h>
#include "../../ibverbs-tests/c/harness.h"
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

struct end {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
};

static struct sockaddr *loopback(uint16_t port)
{
	static struct sockaddr_in sin;
	sin = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = port,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	return (struct sockaddr *)&sin;
}

static struct end end_of(enum rdma_port_space ps)
{
	struct end e = { .channel = rdma_create_event_channel() };
	CHECK(e.channel);
	EQUAL(rdma_create_id(e.channel, &e.id, &e, ps), 0);
	return e;
}

/* The next event, which has to be of this kind and status; the caller acknowledges it. */
static struct rdma_cm_event *next(struct end *e, enum rdma_cm_event_type kind, int status)
{
	struct rdma_cm_event *event;
	EQUAL(rdma_get_cm_event(e->channel, &event), 0);
	if (event->event != kind)
		fprintf(stderr, "%s instead of %s\n", rdma_event_str(event->event),
			rdma_event_str(kind));
	EQUAL(event->event, kind);
	EQUAL(event->status, status);
	return event;
}

static void expect_event(struct end *e, enum rdma_cm_event_type kind, int status)
{
	EQUAL(rdma_ack_cm_event(next(e, kind, status)), 0);
}

static void no_event(struct end *e)
{
	struct pollfd fd = { .fd = e->channel->fd, .events = POLLIN };
	EQUAL(poll(&fd, 1, 100), 0);
}

static void resolve(struct end *e, uint16_t port)
{
	EQUAL(rdma_resolve_addr(e->id, NULL, loopback(port), 2000), 0);
	expect_event(e, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(e->id->verbs && e->id->pd);
	EQUAL(e->id->port_num, 1);
	EQUAL(rdma_resolve_route(e->id, 2000), 0);
	expect_event(e, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	EQUAL(e->id->route.num_paths, 1);
	CHECK(e->id->route.path_rec && e->id->route.path_rec->mtu);
}

static struct end listener(enum rdma_port_space ps)
{
	struct end e = end_of(ps);
	EQUAL(rdma_bind_addr(e.id, loopback(0)), 0);
	CHECK(rdma_get_src_port(e.id));
	EQUAL(rdma_listen(e.id, 4), 0);
	return e;
}

static void with_qp(struct rdma_cm_id *id, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = { .qp_type = type, .cap = { 4, 4, 1, 1, 0 } };
	EQUAL(rdma_create_qp(id, NULL, &init), 0);
	CHECK(id->qp && id->send_cq && id->recv_cq && id->send_cq_channel && id->recv_cq_channel);
	CHECK(init.send_cq == id->send_cq && init.recv_cq == id->recv_cq);
	EQUAL(rdma_create_qp(id, NULL, &init), -1);
	EQUAL(errno, EINVAL);
}

static int state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	EQUAL(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
	return attr.qp_state;
}

/* A request on its way to `server`; returns its event. */
static struct rdma_cm_event *request(struct end *client, struct end *server,
				     struct rdma_conn_param *param)
{
	resolve(client, rdma_get_src_port(server->id));
	with_qp(client->id, IBV_QPT_RC);
	EQUAL(state_of(client->id->qp), IBV_QPS_INIT);
	EQUAL(rdma_connect(client->id, param), 0);
	struct rdma_cm_event *event = next(server, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	CHECK(event->listen_id == server->id && event->id != server->id);
	CHECK(event->id->verbs && event->id->context == server->id->context);
	return event;
}

static struct rdma_cm_id *connect_both(struct end *client, struct end *server)
{
	struct rdma_cm_event *event = request(client, server, NULL);
	struct rdma_cm_id *id = event->id;
	with_qp(id, IBV_QPT_RC);
	EQUAL(rdma_accept(id, NULL), 0);
	EQUAL(rdma_ack_cm_event(event), 0);
	expect_event(client, RDMA_CM_EVENT_ESTABLISHED, 0);
	expect_event(server, RDMA_CM_EVENT_ESTABLISHED, 0);
	EQUAL(client->id->qp->state, IBV_QPS_RTS);
	EQUAL(state_of(client->id->qp), IBV_QPS_RTS);
	EQUAL(state_of(id->qp), IBV_QPS_RTS);
	return id;
}

static void end_id(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq);
	EQUAL(rdma_destroy_id(id), 0);
}

static void a_message_arrives(void)
{
	struct end client = end_of(RDMA_PS_TCP), server = listener(RDMA_PS_TCP);
	struct rdma_cm_id *id = connect_both(&client, &server);
	static char in[64], out[64] = "hello";
	struct ibv_mr *mr = rdma_reg_msgs(id, in, sizeof in);
	CHECK(mr);
	EQUAL(rdma_post_recv(id, in, in, sizeof in, mr), 0);
	EQUAL(rdma_post_send(client.id, out, out, 6, NULL, IBV_SEND_INLINE | IBV_SEND_SIGNALED), 0);
	struct ibv_wc wc;
	EQUAL(rdma_get_send_comp(client.id, &wc), 1);
	EQUAL(rdma_get_recv_comp(id, &wc), 1);
	EQUAL(wc.status, IBV_WC_SUCCESS);
	EQUAL(wc.byte_len, 6);
	CHECK(!strcmp(in, "hello"));
	EQUAL(rdma_dereg_mr(mr), 0);
	EQUAL(rdma_get_dst_port(client.id), rdma_get_src_port(server.id));
	EQUAL(rdma_get_dst_port(id), rdma_get_src_port(client.id));
	/* Once per side, however often it is asked for. */
	EQUAL(rdma_disconnect(client.id), 0);
	EQUAL(state_of(client.id->qp), IBV_QPS_ERR);
	expect_event(&server, RDMA_CM_EVENT_DISCONNECTED, 0);
	expect_event(&client, RDMA_CM_EVENT_DISCONNECTED, 0);
	rdma_disconnect(id);
	rdma_disconnect(client.id);
	no_event(&server);
	end_id(id);
	end_id(client.id);
	EQUAL(rdma_destroy_id(server.id), 0);
	rdma_destroy_event_channel(client.channel);
	rdma_destroy_event_channel(server.channel);
}

static void resources_are_swapped(void)
{
	struct end client = end_of(RDMA_PS_TCP), server = listener(RDMA_PS_TCP);
	struct rdma_conn_param param = { .responder_resources = 3, .initiator_depth = 5,
					 .retry_count = 6, .rnr_retry_count = 4 };
	struct rdma_cm_event *event = request(&client, &server, &param);
	EQUAL(event->param.conn.responder_resources, 5);
	EQUAL(event->param.conn.initiator_depth, 3);
	EQUAL(event->param.conn.retry_count, 6);
	EQUAL(event->param.conn.rnr_retry_count, 4);
	EQUAL(event->param.conn.qp_num, client.id->qp->qp_num);
	struct rdma_cm_id *id = event->id;
	with_qp(id, IBV_QPT_RC);
	struct rdma_conn_param reply = { .responder_resources = 2, .initiator_depth = 1 };
	EQUAL(rdma_accept(id, &reply), 0);
	EQUAL(rdma_ack_cm_event(event), 0);
	event = next(&client, RDMA_CM_EVENT_ESTABLISHED, 0);
	EQUAL(event->param.conn.responder_resources, 1);
	EQUAL(event->param.conn.initiator_depth, 2);
	EQUAL(rdma_ack_cm_event(event), 0);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	EQUAL(ibv_query_qp(client.id->qp, &attr, IBV_QP_MAX_QP_RD_ATOMIC, &init), 0);
	EQUAL(attr.max_rd_atomic, 2);
	EQUAL(attr.max_dest_rd_atomic, 1);
}

/* With one retry the peer has the time that the kernel's connection manager gives it, 655 ms, to post its receive. */
static void a_receiver_that_is_late(void)
{
	struct end client = end_of(RDMA_PS_TCP), server = listener(RDMA_PS_TCP);
	struct rdma_conn_param once = { .retry_count = 7, .rnr_retry_count = 1 };
	struct rdma_cm_event *event = request(&client, &server, &once);
	struct rdma_cm_id *id = event->id;
	with_qp(id, IBV_QPT_RC);
	EQUAL(rdma_accept(id, &once), 0);
	EQUAL(rdma_ack_cm_event(event), 0);
	expect_event(&client, RDMA_CM_EVENT_ESTABLISHED, 0);
	expect_event(&server, RDMA_CM_EVENT_ESTABLISHED, 0);
	struct rdma_cm_id *ends[] = { client.id, id };
	char in[8], out[8] = "late";
	struct ibv_mr *regions[2];
	for (int i = 0; i < 2; i++) {
		CHECK((regions[i] = rdma_reg_msgs(ends[i], in, sizeof in)));
		EQUAL(rdma_post_send(ends[i], out, out, 5, NULL, IBV_SEND_INLINE | IBV_SEND_SIGNALED), 0);
	}
	usleep(100000);
	for (int i = 0; i < 2; i++)
		EQUAL(rdma_post_recv(ends[i], in, in, sizeof in, regions[i]), 0);
	struct ibv_wc wc;
	for (int i = 0; i < 2; i++) {
		EQUAL(rdma_get_send_comp(ends[i], &wc), 1);
		EQUAL(wc.status, IBV_WC_SUCCESS);
		EQUAL(rdma_get_recv_comp(ends[i], &wc), 1);
		EQUAL(wc.status, IBV_WC_SUCCESS);
		EQUAL(rdma_dereg_mr(regions[i]), 0);
	}
}

static void too_many_resources(void)
{
	struct end client = end_of(RDMA_PS_TCP), server = listener(RDMA_PS_TCP);
	resolve(&client, rdma_get_src_port(server.id));
	struct ibv_device_attr limits;
	EQUAL(ibv_query_device(client.id->verbs, &limits), 0);
	struct rdma_conn_param param = { .responder_resources = limits.max_qp_rd_atom + 1 };
	EQUAL(rdma_connect(client.id, &param), -1);
	EQUAL(errno, EINVAL);
}

static void private_data(void)
{
	struct end client = end_of(RDMA_PS_TCP), server = listener(RDMA_PS_TCP);
	char bytes[256];
	memset(bytes, 'x', sizeof bytes);
	resolve(&client, rdma_get_src_port(server.id));
	with_qp(client.id, IBV_QPT_RC);
	struct rdma_conn_param param = { .private_data = bytes, .private_data_len = 57 };
	EQUAL(rdma_connect(client.id, &param), -1);
	EQUAL(errno, EINVAL);
	param.private_data_len = 7;
	EQUAL(rdma_connect(client.id, &param), 0);
	struct rdma_cm_event *event = next(&server, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	const char *data = event->param.conn.private_data;
	EQUAL(event->param.conn.private_data_len, 56);
	CHECK(!memcmp(data, "xxxxxxx", 7));
	for (int i = 7; i < 56; i++)
		EQUAL(data[i], 0);
	with_qp(event->id, IBV_QPT_RC);
	param.private_data_len = 197;
	EQUAL(rdma_accept(event->id, &param), -1);
	EQUAL(errno, EINVAL);
	param.private_data_len = 196;
	EQUAL(rdma_accept(event->id, &param), 0);
	EQUAL(rdma_ack_cm_event(event), 0);
	event = next(&client, RDMA_CM_EVENT_ESTABLISHED, 0);
	EQUAL(event->param.conn.private_data_len, 196);
	CHECK(!memcmp(event->param.conn.private_data, bytes, 196));
	EQUAL(rdma_ack_cm_event(event), 0);
}

static void refusals(void)
{
	struct end client = end_of(RDMA_PS_TCP), server = listener(RDMA_PS_TCP);
	struct rdma_cm_event *event = request(&client, &server, NULL);
	EQUAL(rdma_reject(event->id, "because", 8), 0);
	struct rdma_cm_id *id = event->id;
	EQUAL(rdma_ack_cm_event(event), 0);
	EQUAL(rdma_destroy_id(id), 0);
	event = next(&client, RDMA_CM_EVENT_REJECTED, 28);
	CHECK(!strcmp(event->param.conn.private_data, "because"));
	EQUAL(event->param.conn.private_data_len, 148);
	EQUAL(rdma_ack_cm_event(event), 0);
	end_id(client.id);
	/* Nobody listens. */
	uint16_t port = rdma_get_src_port(server.id);
	EQUAL(rdma_destroy_id(server.id), 0);
	client = end_of(RDMA_PS_TCP);
	resolve(&client, port);
	with_qp(client.id, IBV_QPT_RC);
	EQUAL(rdma_connect(client.id, NULL), 0);
	expect_event(&client, RDMA_CM_EVENT_REJECTED, 8);
}

static void without_a_queue_pair(void)
{
	struct end client = end_of(RDMA_PS_TCP), server = listener(RDMA_PS_TCP);
	resolve(&client, rdma_get_src_port(server.id));
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	init.send_cq = init.recv_cq = ibv_create_cq(client.id->verbs, 16, NULL, NULL, 0);
	struct ibv_qp *own = ibv_create_qp(client.id->pd, &init);
	struct ibv_qp *other = ibv_create_qp(client.id->pd, &init);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	int mask;
	CHECK(own && other);
	EQUAL(rdma_init_qp_attr(client.id, &attr, &mask), 0);
	EQUAL(ibv_modify_qp(own, &attr, mask), 0);
	struct rdma_conn_param param = { .qp_num = own->qp_num, .responder_resources = 1,
					 .initiator_depth = 1, .retry_count = 7 };
	EQUAL(rdma_connect(client.id, &param), 0);
	struct rdma_cm_event *event = next(&server, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	EQUAL(event->param.conn.qp_num, own->qp_num);
	for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
		attr.qp_state = state;
		EQUAL(rdma_init_qp_attr(event->id, &attr, &mask), 0);
		EQUAL(ibv_modify_qp(other, &attr, mask), 0);
	}
	param.qp_num = other->qp_num;
	EQUAL(rdma_accept(event->id, &param), 0);
	EQUAL(rdma_ack_cm_event(event), 0);
	event = next(&client, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	EQUAL(event->param.conn.qp_num, other->qp_num);
	EQUAL(rdma_ack_cm_event(event), 0);
	for (enum ibv_qp_state state = IBV_QPS_RTR; state <= IBV_QPS_RTS; state++) {
		attr.qp_state = state;
		EQUAL(rdma_init_qp_attr(client.id, &attr, &mask), 0);
		EQUAL(ibv_modify_qp(own, &attr, mask), 0);
	}
	EQUAL(rdma_establish(client.id), 0);
	expect_event(&server, RDMA_CM_EVENT_ESTABLISHED, 0);
}

static void datagrams(void)
{
	struct end client = end_of(RDMA_PS_UDP), server = listener(RDMA_PS_UDP);
	resolve(&client, rdma_get_src_port(server.id));
	with_qp(client.id, IBV_QPT_UD);
	EQUAL(state_of(client.id->qp), IBV_QPS_RTS);
	char bytes[181] = "who";
	struct rdma_conn_param param = { .private_data = bytes, .private_data_len = 181 };
	EQUAL(rdma_connect(client.id, &param), -1);
	EQUAL(errno, EINVAL);
	param.private_data_len = 180;
	EQUAL(rdma_connect(client.id, &param), 0);
	struct rdma_cm_event *event = next(&server, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	EQUAL(event->param.ud.private_data_len, 180);
	CHECK(!strcmp(event->param.ud.private_data, "who"));
	with_qp(event->id, IBV_QPT_UD);
	param.private_data_len = 137;
	EQUAL(rdma_accept(event->id, &param), -1);
	EQUAL(errno, EINVAL);
	param.private_data_len = 136;
	EQUAL(rdma_accept(event->id, &param), 0);
	uint32_t qpn = event->id->qp->qp_num;
	EQUAL(rdma_ack_cm_event(event), 0);
	event = next(&client, RDMA_CM_EVENT_ESTABLISHED, 0);
	EQUAL(event->param.ud.private_data_len, 136);
	EQUAL(event->param.ud.qp_num, qpn);
	EQUAL(event->param.ud.qkey, RDMA_UDP_QKEY);
	struct ibv_ah *ah = ibv_create_ah(client.id->pd, &event->param.ud.ah_attr);
	CHECK(ah);
	EQUAL(rdma_ack_cm_event(event), 0);
}

static void *acknowledge_later(void *event)
{
	usleep(100000);
	EQUAL(rdma_ack_cm_event(event), 0);
	return NULL;
}

static void destruction_waits_for_acknowledgements(void)
{
	struct end e = end_of(RDMA_PS_TCP);
	EQUAL(rdma_resolve_addr(e.id, NULL, loopback(htons(1)), 2000), 0);
	struct rdma_cm_event *event = next(&e, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	pthread_t thread;
	struct timespec before, after;
	clock_gettime(CLOCK_MONOTONIC, &before);
	EQUAL(pthread_create(&thread, NULL, acknowledge_later, event), 0);
	EQUAL(rdma_destroy_id(e.id), 0);
	clock_gettime(CLOCK_MONOTONIC, &after);
	CHECK((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >= 90);
	EQUAL(pthread_join(thread, NULL), 0);
	/* An id and an event are destroyed once. */
	EQUAL(rdma_destroy_id(e.id), -1);
	EQUAL(rdma_ack_cm_event(event), -1);
}

static void *acknowledge_late(void *event)
{
	usleep(1500000);
	EQUAL(rdma_ack_cm_event(event), 0);
	return NULL;
}

/* With IRONVERBS_EXPLAIN=1 whoever waits is told what for; the caller looks at stderr. */
static void destruction_says_what_it_waits_for(void)
{
	struct end e = end_of(RDMA_PS_TCP);
	EQUAL(rdma_resolve_addr(e.id, NULL, loopback(htons(1)), 2000), 0);
	struct rdma_cm_event *event = next(&e, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	pthread_t thread;
	EQUAL(pthread_create(&thread, NULL, acknowledge_late, event), 0);
	EQUAL(rdma_destroy_id(e.id), 0);
	EQUAL(pthread_join(thread, NULL), 0);
}

static void refusal_of_options(void)
{
	struct end client = end_of(RDMA_PS_TCP), server = listener(RDMA_PS_TCP);
	struct rdma_cm_event *event = request(&client, &server, NULL);
	EQUAL(rdma_reject_ece(event->id, "other options", 13), 0);
	EQUAL(rdma_ack_cm_event(event), 0);
	/* "Vendor option is not supported" (IBA 12.6.7.2). */
	event = next(&client, RDMA_CM_EVENT_REJECTED, 35);
	EQUAL(event->param.conn.private_data_len, 148);
	CHECK(!strcmp(event->param.conn.private_data, "other options"));
	EQUAL(rdma_ack_cm_event(event), 0);
}

static sem_t has_read;

static _Noreturn void reads(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	for (;;) {
		EQUAL(rdma_get_cm_event(channel, &event), 0);
		EQUAL(sem_post(&has_read), 0);
		EQUAL(rdma_ack_cm_event(event), 0);
		usleep(500);
	}
}

static void *reads_for_ever(void *channel)
{
	reads(channel);
}

/* As rping does: a thread reads events until the process ends, and the channel ends before. */
static void a_reader_on_its_way_back(void)
{
	EQUAL(sem_init(&has_read, 0, 0), 0);
	for (int i = 0; i < 20; i++) {
		struct end e = end_of(RDMA_PS_TCP);
		EQUAL(rdma_resolve_addr(e.id, NULL, loopback(htons(1)), 2000), 0);
		pthread_t thread;
		EQUAL(pthread_create(&thread, NULL, reads_for_ever, e.channel), 0);
		EQUAL(sem_wait(&has_read), 0);
		EQUAL(rdma_destroy_id(e.id), 0);
		rdma_destroy_event_channel(e.channel);
	}
	usleep(5000);
}

static void a_thousand_rounds(void)
{
	struct end server = listener(RDMA_PS_TCP);
	for (int i = 0; i < 1000; i++) {
		struct end client = end_of(RDMA_PS_TCP);
		struct rdma_cm_id *id = connect_both(&client, &server);
		EQUAL(rdma_disconnect(client.id), 0);
		expect_event(&server, RDMA_CM_EVENT_DISCONNECTED, 0);
		expect_event(&client, RDMA_CM_EVENT_DISCONNECTED, 0);
		end_id(id);
		end_id(client.id);
		/* A leak of descriptors would show as one out of reach. */
		CHECK(client.channel->fd < 64);
		rdma_destroy_event_channel(client.channel);
	}
}

static void *waits_on_a_channel(void *channel)
{
	struct rdma_cm_event *event;
	rdma_get_cm_event(channel, &event);
	fail(__FILE__, __LINE__, "an event");
	return NULL;
}

static void *waits_for_a_request(void *id)
{
	struct rdma_cm_id *new;
	rdma_get_request(id, &new);
	fail(__FILE__, __LINE__, "a request");
	return NULL;
}

/* pthread_cancel(3) ends the thread, and nothing else. */
static void cancelled_in_a_wait(void)
{
	struct end e = end_of(RDMA_PS_TCP);
	struct rdma_cm_id *listening;
	EQUAL(rdma_create_id(NULL, &listening, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_bind_addr(listening, loopback(0)), 0);
	EQUAL(rdma_listen(listening, 4), 0);
	for (int round = 0; round < 20; round++) {
		pthread_t threads[2];
		EQUAL(pthread_create(&threads[0], NULL, waits_on_a_channel, e.channel), 0);
		EQUAL(pthread_create(&threads[1], NULL, waits_for_a_request, listening), 0);
		usleep(round * 200);
		for (int i = 0; i < 2; i++) {
			void *result;
			EQUAL(pthread_cancel(threads[i]), 0);
			EQUAL(pthread_join(threads[i], &result), 0);
			CHECK(result == PTHREAD_CANCELED);
		}
	}
	/* Nothing is held or lost: the two meet. */
	resolve(&e, rdma_get_src_port(listening));
	with_qp(e.id, IBV_QPT_RC);
	struct rdma_conn_param param = { .retry_count = 7 };
	EQUAL(rdma_connect(e.id, &param), 0);
	struct rdma_cm_id *id;
	EQUAL(rdma_get_request(listening, &id), 0);
	EQUAL(rdma_reject(id, NULL, 0), 0);
	expect_event(&e, RDMA_CM_EVENT_REJECTED, 28);
	EQUAL(rdma_destroy_id(id), 0);
	EQUAL(rdma_destroy_id(listening), 0);
}

/* Three processes besides the test: a server that is stopped, a client that asks it and is killed, and one that stays and
 * buries the client. Nobody is there for the server's answer, and it is told so at once. */
static void serve_the_dead(int ports, int ready)
{
	struct end server = listener(RDMA_PS_TCP);
	uint16_t port = rdma_get_src_port(server.id);
	EQUAL(write(ports, &port, sizeof port), sizeof port);
	char byte;
	EQUAL(read(ready, &byte, 1), 1);
	struct pollfd fd = { .fd = server.channel->fd, .events = POLLIN };
	/* The request may have died with its sender. */
	if (!poll(&fd, 1, 3000))
		exit(0);
	struct rdma_cm_event *event = next(&server, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
	struct rdma_cm_id *id = event->id;
	EQUAL(rdma_ack_cm_event(event), 0);
	with_qp(id, IBV_QPT_RC);
	struct rdma_conn_param param = { .retry_count = 7 };
	/* That it is gone may be known here already. */
	if (rdma_accept(id, &param))
		exit(0);
	/* Its own retries would take three times as long. */
	EQUAL(poll(&fd, 1, 20000), 1);
	EQUAL(rdma_get_cm_event(server.channel, &event), 0);
	CHECK(event->id == id && event->event != RDMA_CM_EVENT_ESTABLISHED);
	exit(0);
}

static void ask_and_wait(int ports, int asked)
{
	uint16_t port;
	EQUAL(read(ports, &port, sizeof port), sizeof port);
	struct end client = end_of(RDMA_PS_TCP);
	resolve(&client, port);
	with_qp(client.id, IBV_QPT_RC);
	/* From here on nobody else is needed; and not before the server is stopped. */
	char byte;
	EQUAL(write(asked, "", 1), 1);
	EQUAL(read(ports, &byte, 1), 1);
	EQUAL(rdma_connect(client.id, NULL), 0);
	EQUAL(write(asked, "", 1), 1);
	pause();
}

static void stay(int ready)
{
	CHECK(open_first());
	EQUAL(write(ready, "", 1), 1);
	pause();
}

/* A child that ends with the test, however that ends. */
static pid_t child_of_test(void)
{
	pid_t child = fork();
	if (!child)
		EQUAL(prctl(PR_SET_PDEATHSIG, SIGKILL), 0);
	return child;
}

static void a_client_that_is_gone(void)
{
	int to_server[2], from_server[2], to_client[2], said[2], status;
	char byte;
	EQUAL(pipe(to_server), 0);
	EQUAL(pipe(from_server), 0);
	EQUAL(pipe(to_client), 0);
	EQUAL(pipe(said), 0);
	pid_t server = child_of_test();
	if (!server)
		serve_the_dead(from_server[1], to_server[0]);
	pid_t other = child_of_test();
	if (!other)
		stay(said[1]);
	EQUAL(read(said[0], &byte, 1), 1);
	pid_t client = child_of_test();
	if (!client)
		ask_and_wait(to_client[0], said[1]);
	uint16_t port;
	EQUAL(read(from_server[0], &port, sizeof port), sizeof port);
	EQUAL(write(to_client[1], &port, sizeof port), sizeof port);
	EQUAL(read(said[0], &byte, 1), 1);
	EQUAL(kill(server, SIGSTOP), 0);
	EQUAL(waitpid(server, &status, WUNTRACED), server);
	EQUAL(write(to_client[1], "", 1), 1);
	EQUAL(read(said[0], &byte, 1), 1);
	EQUAL(kill(client, SIGKILL), 0);
	EQUAL(waitpid(client, &status, 0), client);
	pause_ms(300);
	EQUAL(kill(server, SIGCONT), 0);
	EQUAL(write(to_server[1], "", 1), 1);
	EQUAL(waitpid(server, &status, 0), server);
	EQUAL(status, 0);
	EQUAL(kill(other, SIGKILL), 0);
	EQUAL(waitpid(other, &status, 0), other);
}

static void noted(int signal)
{
	(void)signal;
}

static volatile int interrupted;

static void *is_interrupted(void *id)
{
	struct rdma_cm_id *new;
	EQUAL(rdma_get_request(id, &new), -1);
	EQUAL(errno, EINTR);
	interrupted = 1;
	return NULL;
}

/* A server that waits for requests is ended by a signal whose handler asks for that. */
static void a_signal_in_a_wait(void)
{
	struct sigaction action = { .sa_handler = noted };
	EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
	struct rdma_cm_id *listening;
	EQUAL(rdma_create_id(NULL, &listening, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_bind_addr(listening, loopback(0)), 0);
	EQUAL(rdma_listen(listening, 4), 0);
	pthread_t thread;
	EQUAL(pthread_create(&thread, NULL, is_interrupted, listening), 0);
	/* It may not wait yet when the first comes. */
	while (!interrupted) {
		EQUAL(pthread_kill(thread, SIGUSR1), 0);
		usleep(1000);
	}
	EQUAL(pthread_join(thread, NULL), 0);
	EQUAL(rdma_destroy_id(listening), 0);
}

static const struct test tests[] = {
	TEST(a_message_arrives),
	TEST(resources_are_swapped),
	TEST(a_receiver_that_is_late),
	TEST(too_many_resources),
	TEST(private_data),
	TEST(refusals),
	TEST(without_a_queue_pair),
	TEST(datagrams),
	TEST(destruction_waits_for_acknowledgements),
	TEST(destruction_says_what_it_waits_for),
	TEST(refusal_of_options),
	TEST(cancelled_in_a_wait),
	TEST(a_signal_in_a_wait),
	TEST(a_client_that_is_gone),
	TEST(a_reader_on_its_way_back),
	TEST(a_thousand_rounds),
};
MAIN(tests)
