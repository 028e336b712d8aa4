/* Every function with what it must refuse: nothing given, the wrong moment, the wrong kind. */
#include "../../ibverbs-tests/c/harness.h"
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

/* -1 and this errno. */
#define FAILS(call, why) do { errno = 0; EQUAL(call, -1); EQUAL(errno, why); } while (0)

static struct sockaddr *v4(uint32_t ip, uint16_t port)
{
	static struct sockaddr_in sin;
	sin = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port),
				    .sin_addr.s_addr = htonl(ip) };
	return (struct sockaddr *)&sin;
}

static struct rdma_cm_id *sync_id(enum rdma_port_space ps)
{
	struct rdma_cm_id *id;
	EQUAL(rdma_create_id(NULL, &id, NULL, ps), 0);
	return id;
}

static struct rdma_cm_id *routed(enum rdma_port_space ps, uint16_t port)
{
	struct rdma_cm_id *id = sync_id(ps);
	EQUAL(rdma_resolve_addr(id, NULL, v4(INADDR_LOOPBACK, port), 2000), 0);
	EQUAL(rdma_resolve_route(id, 2000), 0);
	return id;
}

static struct rdma_cm_id *listening(enum rdma_port_space ps)
{
	struct rdma_cm_id *id = sync_id(ps);
	EQUAL(rdma_bind_addr(id, v4(INADDR_LOOPBACK, 0)), 0);
	EQUAL(rdma_listen(id, 4), 0);
	return id;
}

static void nothing_given(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = sync_id(RDMA_PS_TCP), *out;
	struct rdma_cm_event *event;
	struct ibv_qp_attr attr;
	int mask;
	FAILS(rdma_create_id(channel, NULL, NULL, RDMA_PS_TCP), EINVAL);
	FAILS(rdma_get_cm_event(channel, NULL), EINVAL);
	FAILS(rdma_get_cm_event(NULL, &event), EINVAL);
	FAILS(rdma_ack_cm_event(NULL), EINVAL);
	FAILS(rdma_destroy_id(NULL), EINVAL);
	FAILS(rdma_bind_addr(NULL, v4(INADDR_LOOPBACK, 0)), EINVAL);
	FAILS(rdma_bind_addr(id, NULL), EINVAL);
	FAILS(rdma_resolve_addr(NULL, NULL, v4(INADDR_LOOPBACK, 1), 10), EINVAL);
	FAILS(rdma_resolve_addr(id, NULL, NULL, 10), EINVAL);
	FAILS(rdma_resolve_route(NULL, 10), EINVAL);
	FAILS(rdma_create_qp(NULL, NULL, NULL), EINVAL);
	FAILS(rdma_create_srq(NULL, NULL, NULL), EINVAL);
	FAILS(rdma_connect(NULL, NULL), EINVAL);
	FAILS(rdma_listen(NULL, 1), EINVAL);
	FAILS(rdma_get_request(NULL, &out), EINVAL);
	FAILS(rdma_get_request(id, NULL), EINVAL);
	FAILS(rdma_accept(NULL, NULL), EINVAL);
	FAILS(rdma_reject(NULL, NULL, 0), EINVAL);
	FAILS(rdma_reject_ece(NULL, NULL, 0), EINVAL);
	FAILS(rdma_notify(NULL, IBV_EVENT_COMM_EST), EINVAL);
	FAILS(rdma_disconnect(NULL), EINVAL);
	FAILS(rdma_establish(NULL), EINVAL);
	FAILS(rdma_join_multicast(NULL, v4(0xef010101, 0), NULL), EINVAL);
	FAILS(rdma_join_multicast_ex(id, NULL, NULL), EINVAL);
	FAILS(rdma_leave_multicast(NULL, v4(0xef010101, 0)), EINVAL);
	FAILS(rdma_set_option(NULL, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, "", 1), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1), EINVAL);
	FAILS(rdma_migrate_id(NULL, channel), EINVAL);
	FAILS(rdma_init_qp_attr(NULL, &attr, &mask), EINVAL);
	FAILS(rdma_set_local_ece(NULL, NULL), EINVAL);
	FAILS(rdma_get_remote_ece(id, NULL), EINVAL);
	FAILS(rdma_create_ep(NULL, NULL, NULL, NULL), EINVAL);
	rdma_destroy_qp(NULL);
	rdma_destroy_srq(NULL);
	rdma_destroy_ep(NULL);
	rdma_destroy_event_channel(NULL);
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	EQUAL(rdma_get_src_port(id), 0);
	EQUAL(rdma_get_dst_port(id), 0);
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
}

static void addresses_of_another_kind(void)
{
	struct rdma_cm_id *id = sync_id(RDMA_PS_TCP);
	struct sockaddr local = { .sa_family = AF_UNIX };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	FAILS(rdma_bind_addr(id, &local), EINVAL);
	FAILS(rdma_resolve_addr(id, NULL, &local, 100), EINVAL);
	FAILS(rdma_resolve_addr(id, (struct sockaddr *)&v6, v4(INADDR_LOOPBACK, 1), 100), EINVAL);
	/* And the id is as it was. */
	EQUAL(rdma_bind_addr(id, v4(INADDR_LOOPBACK, 0)), 0);
	FAILS(rdma_bind_addr(id, v4(INADDR_LOOPBACK, 0)), EINVAL);
	EQUAL(rdma_destroy_id(id), 0);
}

/* What is asked of an id that is not so far, or further. */
static void out_of_turn(void)
{
	struct rdma_cm_id *id = sync_id(RDMA_PS_TCP);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 1, .max_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	int mask;
	FAILS(rdma_resolve_route(id, 100), EINVAL);
	FAILS(rdma_connect(id, NULL), EINVAL);
	FAILS(rdma_accept(id, NULL), EINVAL);
	FAILS(rdma_reject(id, NULL, 0), EINVAL);
	FAILS(rdma_establish(id), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
	FAILS(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	FAILS(rdma_create_qp(id, NULL, &init), EINVAL);
	FAILS(rdma_create_srq(id, NULL, &srq), EINVAL);
	FAILS(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	FAILS(rdma_join_multicast(id, v4(0xef010101, 0), NULL), EINVAL);
	EQUAL(rdma_destroy_id(id), 0);

	id = routed(RDMA_PS_TCP, 1);
	FAILS(rdma_resolve_addr(id, NULL, v4(INADDR_LOOPBACK, 1), 100), EINVAL);
	FAILS(rdma_resolve_route(id, 100), EINVAL);
	FAILS(rdma_bind_addr(id, v4(INADDR_LOOPBACK, 0)), EINVAL);
	FAILS(rdma_listen(id, 1), EINVAL);
	FAILS(rdma_accept(id, NULL), EINVAL);
	FAILS(rdma_establish(id), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
	EQUAL(rdma_create_qp(id, NULL, &init), 0);
	FAILS(rdma_create_qp(id, NULL, &init), EINVAL);
	rdma_destroy_qp(id);
	EQUAL(rdma_create_srq(id, NULL, &srq), 0);
	FAILS(rdma_create_srq(id, NULL, &srq), EINVAL);
	rdma_destroy_srq(id);
	CHECK(!id->srq);
	EQUAL(rdma_destroy_id(id), 0);

	id = listening(RDMA_PS_TCP);
	FAILS(rdma_listen(id, 1), EINVAL);
	FAILS(rdma_connect(id, NULL), EINVAL);
	FAILS(rdma_resolve_addr(id, NULL, v4(INADDR_LOOPBACK, 1), 100), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
	FAILS(rdma_bind_addr(id, v4(INADDR_LOOPBACK, 0)), EINVAL);
	EQUAL(rdma_destroy_id(id), 0);
	/* There is no such id any more. */
	EQUAL(rdma_listen(id, 1), -1);
	EQUAL(rdma_destroy_id(id), -1);
}

static void kinds_that_do_not_fit(void)
{
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_UD, .cap = { 1, 1, 1, 1, 0 } };
	FAILS(rdma_create_id(NULL, &id, NULL, 0), EINVAL);
	FAILS(rdma_create_id(NULL, &id, NULL, 0x10a), EINVAL);
	id = routed(RDMA_PS_TCP, 1);
	FAILS(rdma_create_qp(id, NULL, &init), EINVAL);
	init.qp_type = IBV_QPT_RC;
	init.cap.max_send_wr = 1 << 30;
	errno = 0;
	EQUAL(rdma_create_qp(id, NULL, &init), -1);
	CHECK(errno);
	CHECK(!id->qp && !id->send_cq && !id->recv_cq);
	EQUAL(rdma_destroy_id(id), 0);
	id = routed(RDMA_PS_UDP, 1);
	init.cap.max_send_wr = 1;
	FAILS(rdma_create_qp(id, NULL, &init), EINVAL);
	EQUAL(rdma_destroy_id(id), 0);
	/* A listener whose requests a program fetches itself, and one whose it does not. */
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *out;
	EQUAL(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	FAILS(rdma_get_request(id, &out), EINVAL);
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
}

static void options_out_of_bounds(void)
{
	struct rdma_cm_id *id = sync_id(RDMA_PS_TCP);
	uint8_t byte = 32;
	int number = 1;
	FAILS(rdma_set_option(id, 77, RDMA_OPTION_ID_TOS, &byte, 1), ENOSYS);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &byte, 1), EINVAL);
	EQUAL(rdma_bind_addr(id, v4(INADDR_LOOPBACK, 0)), 0);
	/* Too late for what says how it is bound. */
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &number, sizeof number), EINVAL);
	EQUAL(rdma_destroy_id(id), 0);
}

static void *ask(void *port)
{
	struct rdma_cm_id *id = routed(RDMA_PS_TCP, *(uint16_t *)port);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	EQUAL(rdma_create_qp(id, NULL, &init), 0);
	FAILS(rdma_connect(id, NULL), ECONNREFUSED);
	EQUAL(id->event->status, 28);
	rdma_destroy_qp(id);
	EQUAL(rdma_destroy_id(id), 0);
	return NULL;
}

static void private_data_too_long(void)
{
	struct rdma_cm_id *server = listening(RDMA_PS_TCP), *id;
	uint16_t port = ntohs(rdma_get_src_port(server));
	static char bytes[256];
	pthread_t client;
	EQUAL(pthread_create(&client, NULL, ask, &port), 0);
	EQUAL(rdma_get_request(server, &id), 0);
	FAILS(rdma_reject(id, bytes, 149), EINVAL);
	FAILS(rdma_reject_ece(id, bytes, 149), EINVAL);
	struct rdma_conn_param param = { .private_data = bytes, .private_data_len = 197 };
	FAILS(rdma_accept(id, &param), EINVAL);
	/* None of it was an answer. */
	EQUAL(rdma_reject(id, bytes, 148), 0);
	FAILS(rdma_reject(id, NULL, 0), EINVAL);
	FAILS(rdma_accept(id, NULL), EINVAL);
	EQUAL(pthread_join(client, NULL), 0);
	EQUAL(rdma_destroy_id(id), 0);
	EQUAL(rdma_destroy_id(server), 0);
}

static void groups(void)
{
	struct rdma_cm_id *id = sync_id(RDMA_PS_UDP);
	struct sockaddr_in group = *(struct sockaddr_in *)v4(0xef010101, 0);
	EQUAL(rdma_bind_addr(id, v4(INADDR_LOOPBACK, 0)), 0);
	struct rdma_cm_join_mc_attr_ex attr = { .join_flags = RDMA_MC_JOIN_FLAG_FULLMEMBER,
						.addr = (struct sockaddr *)&group };
	FAILS(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS;
	FAILS(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	attr.comp_mask = 1 << 10;
	FAILS(rdma_join_multicast_ex(id, &attr, NULL), ENOTSUP);
	attr.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	attr.join_flags = 99;
	FAILS(rdma_join_multicast_ex(id, &attr, NULL), EINVAL);
	FAILS(rdma_join_multicast(id, NULL, NULL), EINVAL);
	FAILS(rdma_join_multicast(id, v4(INADDR_LOOPBACK, 0), NULL), EINVAL);
	FAILS(rdma_leave_multicast(id, (struct sockaddr *)&group), EADDRNOTAVAIL);
	EQUAL(rdma_join_multicast(id, (struct sockaddr *)&group, &group), 0);
	EQUAL(id->event->event, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(id->event->param.ud.private_data == &group);
	EQUAL(rdma_leave_multicast(id, (struct sockaddr *)&group), 0);
	FAILS(rdma_leave_multicast(id, (struct sockaddr *)&group), EADDRNOTAVAIL);
	EQUAL(rdma_destroy_id(id), 0);
}

static void endpoints_that_cannot_be(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *res;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1 << 30, 1, 1, 1, 0 } };
	struct rdma_cm_id *id;
	EQUAL(rdma_getaddrinfo("127.0.0.1", "1", &hints, &res), 0);
	FAILS(rdma_create_ep(NULL, res, NULL, NULL), EINVAL);
	errno = 0;
	EQUAL(rdma_create_ep(&id, res, NULL, &init), -1);
	CHECK(errno);
	rdma_freeaddrinfo(res);
	/* To nowhere. */
	EQUAL(rdma_getaddrinfo("240.0.0.1", "1", &hints, &res), 0);
	errno = 0;
	EQUAL(rdma_create_ep(&id, res, NULL, NULL), -1);
	CHECK(errno);
	rdma_freeaddrinfo(res);
	/* What failed left nothing: the device's own things can still be made. */
	id = routed(RDMA_PS_TCP, 1);
	EQUAL(rdma_destroy_id(id), 0);
}

static const struct test tests[] = {
	TEST(nothing_given),
	TEST(addresses_of_another_kind),
	TEST(out_of_turn),
	TEST(kinds_that_do_not_fit),
	TEST(options_out_of_bounds),
	TEST(private_data_too_long),
	TEST(groups),
	TEST(endpoints_that_cannot_be),
};
MAIN(tests)
