/* Ports by their GIDs and services by their IDs (AF_IB), and paths that the program knows. */
#include "../../ibverbs-tests/c/harness.h"
#include <infiniband/ib.h>
#include <infiniband/sa.h>
#include <rdma/rdma_cma.h>

#define SPACE(ps) ((uint64_t)(ps) << 16)

/* The first GID of the first device. */
static struct ib_addr own_gid(void)
{
	struct ibv_context *context = open_first();
	struct ib_addr addr;
	union ibv_gid gid;

	EQUAL(ibv_query_gid(context, 1, 0, &gid), 0);
	memcpy(&addr, &gid, sizeof addr);
	EQUAL(ibv_close_device(context), 0);
	return addr;
}

/* `port` 0 leaves the port open. */
static struct sockaddr_ib at(struct ib_addr gid, uint64_t sid)
{
	return (struct sockaddr_ib){ .sib_family = AF_IB, .sib_pkey = htobe16(0xffff), .sib_addr = gid,
				     .sib_sid = htobe64(sid),
				     .sib_sid_mask = htobe64(sid & 0xffff ? ~0ull : ~0xffffull) };
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *channel, enum rdma_port_space ps)
{
	struct rdma_cm_id *id;

	EQUAL(rdma_create_id(channel, &id, NULL, ps), 0);
	return id;
}

static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;

	EQUAL(rdma_get_cm_event(channel, &event), 0);
	if (event->event != kind)
		fprintf(stderr, "%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(kind));
	EQUAL(event->event, kind);
	return event;
}

static void expect_event(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	EQUAL(rdma_ack_cm_event(next(channel, kind)), 0);
}

static struct sockaddr_ib *ib(struct sockaddr *addr)
{
	EQUAL(addr->sa_family, AF_IB);
	return (struct sockaddr_ib *)addr;
}

static void with_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };

	EQUAL(rdma_create_qp(id, NULL, &init), 0);
}

static struct ibv_path_data path_of(struct rdma_cm_id *id)
{
	struct ibv_path_data data = { .flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY |
					       IBV_PATH_FLAG_BIDIRECTIONAL };

	data.path.dgid = id->route.addr.addr.ibaddr.dgid;
	data.path.sgid = id->route.addr.addr.ibaddr.sgid;
	data.path.flowlabel_hoplimit = htobe32(0x12345 << 8 | 7);
	data.path.tclass = 9;
	data.path.reversible_numpath = 0x81;
	data.path.pkey = htobe16(0xffff);
	data.path.mtu = 2 << 6 | IBV_MTU_1024;
	data.path.rate = 2 << 6 | IBV_RATE_10_GBPS;
	data.path.packetlifetime = 2 << 6 | 14;
	return data;
}

static void connection(enum rdma_port_space ps, bool by_path)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct ib_addr gid = own_gid();
	struct rdma_cm_id *server = new_id(channel, ps), *client = new_id(channel, ps), *id;
	struct sockaddr_ib any = at((struct ib_addr){ 0 }, SPACE(ps)), to;
	struct rdma_cm_event *event;
	char data[92];
	struct rdma_conn_param param = { .private_data = data, .private_data_len = sizeof data,
					 .responder_resources = 1, .initiator_depth = 1 };

	EQUAL(rdma_bind_addr(server, (struct sockaddr *)&any), 0);
	CHECK(rdma_get_src_port(server));
	EQUAL(be64toh(ib(rdma_get_local_addr(server))->sib_sid), SPACE(ps) | ntohs(rdma_get_src_port(server)));
	EQUAL(rdma_listen(server, 4), 0);
	to = at(gid, SPACE(ps) | ntohs(rdma_get_src_port(server)));
	EQUAL(rdma_resolve_addr(client, NULL, (struct sockaddr *)&to, 2000), 0);
	expect_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(client->verbs && client->pd);
	CHECK(!memcmp(&ib(rdma_get_local_addr(client))->sib_addr, &gid, 16));
	EQUAL(rdma_get_dst_port(client), rdma_get_src_port(server));
	if (by_path) {
		struct ibv_path_data known[2] = { { 0 }, path_of(client) };

		EQUAL(rdma_set_option(client, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, known, sizeof known), 0);
	} else {
		EQUAL(rdma_resolve_route(client, 2000), 0);
	}
	expect_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	EQUAL(client->route.num_paths, 1);
	if (by_path) {
		EQUAL(client->route.path_rec->mtu, IBV_MTU_1024);
		EQUAL(client->route.path_rec->traffic_class, 9);
		EQUAL(be32toh(client->route.path_rec->flow_label), 0x12345);
		EQUAL(client->route.path_rec->hop_limit, 7);
		EQUAL(client->route.path_rec->rate, IBV_RATE_10_GBPS);
	}
	with_qp(client);
	/* No text begins like the header that names IP addresses, but any may be sent. */
	memset(data, 'x', sizeof data);
	EQUAL(rdma_connect(client, &param), 0);
	event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->param.conn.private_data_len >= sizeof data);
	CHECK(!memcmp(event->param.conn.private_data, data, sizeof data));
	id = event->id;
	CHECK(!memcmp(&ib(rdma_get_local_addr(id))->sib_addr, &gid, 16));
	CHECK(!memcmp(&ib(rdma_get_peer_addr(id))->sib_addr, &gid, 16));
	EQUAL(rdma_get_src_port(id), rdma_get_src_port(server));
	with_qp(id);
	EQUAL(rdma_accept(id, NULL), 0);
	EQUAL(rdma_ack_cm_event(event), 0);
	expect_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	expect_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	if (by_path) {
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;

		EQUAL(ibv_query_qp(client->qp, &attr, IBV_QP_PATH_MTU | IBV_QP_AV, &init), 0);
		EQUAL(attr.path_mtu, IBV_MTU_1024);
	}
	EQUAL(rdma_disconnect(client), 0);
	expect_event(channel, RDMA_CM_EVENT_DISCONNECTED);
	expect_event(channel, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(client);
	rdma_destroy_qp(id);
	EQUAL(rdma_destroy_id(id), 0);
	EQUAL(rdma_destroy_id(client), 0);
	EQUAL(rdma_destroy_id(server), 0);
	rdma_destroy_event_channel(channel);
}

static void connections(void)
{
	connection(RDMA_PS_TCP, false);
	connection(RDMA_PS_IB, false);
}

static void paths(void)
{
	connection(RDMA_PS_TCP, true);
}

static void wrong_paths(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP);
	struct sockaddr_ib to = at(own_gid(), SPACE(RDMA_PS_TCP) | 7);
	struct ibv_path_data data = { .flags = IBV_PATH_FLAG_PRIMARY }, good;

#define REFUSED(data, len) do { \
	EQUAL(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, data, len), -1); \
	EQUAL(errno, EINVAL); } while (0)
	data.flags |= IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_BIDIRECTIONAL;
	data.path.mtu = IBV_MTU_1024;
	/* Only where the address is resolved and the route is not. */
	REFUSED(&data, sizeof data);
	EQUAL(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000), 0);
	expect_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	good = path_of(id);
	REFUSED(&good, 0);
	REFUSED(&good, sizeof good - 1);
	REFUSED(&good, 1);
	REFUSED(NULL, sizeof good);
	/* Of other GIDs, of no MTU, for less than all. */
	REFUSED(&data, sizeof data);
	data = good;
	data.path.mtu = 0;
	REFUSED(&data, sizeof data);
	data = good;
	data.flags = IBV_PATH_FLAG_PRIMARY;
	REFUSED(&data, sizeof data);
	EQUAL(rdma_set_option(id, RDMA_OPTION_IB, 9, &good, sizeof good), -1);
	EQUAL(errno, ENOSYS);
	EQUAL(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &good, sizeof good), 0);
	expect_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	REFUSED(&good, sizeof good);
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
}

static void wrong_addresses(void)
{
	struct ib_addr gid = own_gid(), nobody = { .ib_u.uib_addr8 = { 0xfe, 0x80, [15] = 0x77 } };
	struct sockaddr_ib other = at(gid, SPACE(RDMA_PS_UDP) | 9), good = at(gid, SPACE(RDMA_PS_TCP));
	struct sockaddr_ib unknown = at(nobody, SPACE(RDMA_PS_TCP));
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = new_id(channel, RDMA_PS_TCP), *second;

	EQUAL(rdma_bind_addr(id, (struct sockaddr *)&other), -1);
	EQUAL(errno, EPROTONOSUPPORT);
	EQUAL(rdma_bind_addr(id, (struct sockaddr *)&unknown), -1);
	CHECK(errno == EADDRNOTAVAIL || errno == ENODEV);
	EQUAL(rdma_bind_addr(id, (struct sockaddr *)&good), 0);
	EQUAL(rdma_bind_addr(id, (struct sockaddr *)&good), -1);
	EQUAL(errno, EINVAL);
	CHECK(id->verbs);
	/* Two families. */
	EQUAL(rdma_resolve_addr(id, NULL, (struct sockaddr *)&v4, 100), -1);
	EQUAL(errno, EINVAL);
	second = new_id(channel, RDMA_PS_TCP);
	EQUAL(rdma_resolve_addr(second, (struct sockaddr *)&v4, (struct sockaddr *)&good, 100), -1);
	EQUAL(errno, EINVAL);
	/* The port is taken for all families. */
	v4.sin_port = rdma_get_src_port(id);
	EQUAL(rdma_listen(id, 1), 0);
	EQUAL(rdma_destroy_id(second), 0);
	/* Of any space for an id of any. */
	second = new_id(channel, RDMA_PS_IB);
	other = at(gid, SPACE(RDMA_PS_UDP));
	EQUAL(rdma_bind_addr(second, (struct sockaddr *)&other), 0);
	EQUAL(be64toh(ib(rdma_get_local_addr(second))->sib_sid) >> 16, RDMA_PS_UDP);
	EQUAL(rdma_destroy_id(second), 0);
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
}

/* Who listens by an IP address would not know what to make of a peer without one. */
static void ip_listener_refuses(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *server = new_id(channel, RDMA_PS_TCP), *client = new_id(channel, RDMA_PS_TCP);
	struct sockaddr_in6 any = { .sin6_family = AF_INET6 };
	struct rdma_conn_param param = { .responder_resources = 1 };
	struct sockaddr_ib to;

	EQUAL(rdma_bind_addr(server, (struct sockaddr *)&any), 0);
	EQUAL(rdma_listen(server, 4), 0);
	to = at(own_gid(), SPACE(RDMA_PS_TCP) | ntohs(rdma_get_src_port(server)));
	EQUAL(rdma_resolve_addr(client, NULL, (struct sockaddr *)&to, 2000), 0);
	expect_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	EQUAL(rdma_resolve_route(client, 2000), 0);
	expect_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	with_qp(client);
	EQUAL(rdma_connect(client, &param), 0);
	expect_event(channel, RDMA_CM_EVENT_REJECTED);
	rdma_destroy_qp(client);
	EQUAL(rdma_destroy_id(client), 0);
	EQUAL(rdma_destroy_id(server), 0);
	rdma_destroy_event_channel(channel);
}

static void names(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_FAMILY | RAI_NUMERICHOST, .ai_family = AF_IB,
				       .ai_port_space = RDMA_PS_TCP }, *res;
	struct sockaddr_ib *addr;
	char route[] = "route";

	EQUAL(rdma_getaddrinfo("fe80::12", "7471", &hints, &res), 0);
	EQUAL(res->ai_family, AF_IB);
	EQUAL(res->ai_dst_len, sizeof *addr);
	CHECK(!res->ai_src_addr && !res->ai_route);
	addr = ib(res->ai_dst_addr);
	EQUAL(be64toh(addr->sib_sid), SPACE(RDMA_PS_TCP) | 7471);
	EQUAL(be64toh(addr->sib_sid_mask), ~0ull);
	EQUAL(addr->sib_addr.ib_u.uib_addr8[0], 0xfe);
	EQUAL(addr->sib_addr.ib_u.uib_addr8[15], 0x12);
	EQUAL(be16toh(addr->sib_pkey), 0xffff);
	rdma_freeaddrinfo(res);
	hints.ai_flags |= RAI_PASSIVE;
	hints.ai_port_space = RDMA_PS_IB;
	EQUAL(rdma_getaddrinfo("::", NULL, &hints, &res), 0);
	CHECK(!res->ai_dst_addr);
	EQUAL(be64toh(ib(res->ai_src_addr)->sib_sid), SPACE(RDMA_PS_IB));
	EQUAL(be64toh(ib(res->ai_src_addr)->sib_sid_mask), ~0xffffull);
	rdma_freeaddrinfo(res);
	CHECK(rdma_getaddrinfo("no-gid", "1", &hints, &res) != 0);
	CHECK(rdma_getaddrinfo("10.0.0.1", "1", &hints, &res) != 0);
	/* What the program knows comes back. */
	hints = (struct rdma_addrinfo){ .ai_route = route, .ai_route_len = sizeof route };
	EQUAL(rdma_getaddrinfo("127.0.0.1", "1", &hints, &res), 0);
	EQUAL(res->ai_route_len, sizeof route);
	CHECK(res->ai_route != route && !strcmp(res->ai_route, route));
	rdma_freeaddrinfo(res);
}

static void endpoints(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_FAMILY | RAI_NUMERICHOST | RAI_PASSIVE,
				       .ai_family = AF_IB, .ai_port_space = RDMA_PS_TCP }, *res;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	struct ib_addr gid = own_gid();
	struct rdma_cm_id *server, *client;
	char text[INET6_ADDRSTRLEN], port[8];
	struct ibv_path_data known;

	CHECK(inet_ntop(AF_INET6, &gid, text, sizeof text));
	EQUAL(rdma_getaddrinfo(text, NULL, &hints, &res), 0);
	EQUAL(rdma_create_ep(&server, res, NULL, &init), 0);
	rdma_freeaddrinfo(res);
	EQUAL(rdma_listen(server, 1), 0);
	hints.ai_flags &= ~RAI_PASSIVE;
	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(server)));
	EQUAL(rdma_getaddrinfo(text, port, &hints, &res), 0);
	EQUAL(rdma_create_ep(&client, res, NULL, &init), 0);
	EQUAL(ib(rdma_get_peer_addr(client))->sib_sid, htobe64(SPACE(RDMA_PS_TCP) | ntohs(rdma_get_src_port(server))));
	known = path_of(client);
	rdma_destroy_ep(client);
	/* By a path that is in the result. */
	res->ai_route = calloc(1, sizeof known);
	memcpy(res->ai_route, &known, sizeof known);
	res->ai_route_len = sizeof known;
	init = (struct ibv_qp_init_attr){ .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
	EQUAL(rdma_create_ep(&client, res, NULL, &init), 0);
	EQUAL(client->route.path_rec->mtu, IBV_MTU_1024);
	rdma_freeaddrinfo(res);
	rdma_destroy_ep(client);
	rdma_destroy_ep(server);
}

static const struct test tests[] = {
	TEST(connections),
	TEST(paths),
	TEST(wrong_paths),
	TEST(wrong_addresses),
	TEST(ip_listener_refuses),
	TEST(names),
	TEST(endpoints),
};

MAIN(tests)
