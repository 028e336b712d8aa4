/* Routes on InfiniBand links, as rdma_resolve_route(3) and rdma_getaddrinfo(3) have them: what the administrator of the
 * subnet says. */
#include "../../ibverbs-tests/c/harness.h"
#include <arpa/inet.h>
#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>

/* A group of processes of this test's own, so that nobody else's manager has its subnet. */
static void alone(void)
{
	char port[16];

	snprintf(port, sizeof(port), "%d", 20000 + getpid() % 8000);
	setenv("IRONVERBS_UDP_PORT", port, 1);
}

static struct sockaddr_ib first_port(void)
{
	struct ibv_context *context = open_first();
	struct sockaddr_ib addr = { .sib_family = AF_IB, .sib_pkey = htobe16(0xffff) };
	union ibv_gid gid;

	EQUAL(ibv_query_gid(context, 1, 0, &gid), 0);
	memcpy(&addr.sib_addr, &gid, sizeof(gid));
	addr.sib_sid = htobe64((uint64_t)RDMA_PS_TCP << 16 | 7);
	addr.sib_sid_mask = ~0ull;
	EQUAL(ibv_close_device(context), 0);
	return addr;
}

/* A port that the subnet does not have. */
static struct sockaddr_ib nobody(void)
{
	struct sockaddr_ib addr = first_port();

	addr.sib_addr.sib_addr8[15] ^= 0x55;
	addr.sib_addr.sib_addr8[14] ^= 0x55;
	return addr;
}

static struct rdma_cm_id *resolved(struct rdma_event_channel *channel, struct sockaddr_ib to)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	EQUAL(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000), 0);
	EQUAL(rdma_get_cm_event(channel, &event), 0);
	EQUAL(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
	EQUAL(rdma_ack_cm_event(event), 0);
	return id;
}

static void expect_error(struct rdma_event_channel *channel, struct rdma_cm_id *id, int timeout, int status)
{
	struct rdma_cm_event *event;

	EQUAL(rdma_resolve_route(id, timeout), 0);
	EQUAL(rdma_get_cm_event(channel, &event), 0);
	EQUAL(event->event, RDMA_CM_EVENT_ROUTE_ERROR);
	EQUAL(event->id == id, 1);
	EQUAL(event->status, status);
	EQUAL(rdma_ack_cm_event(event), 0);
}

static void what_the_administrator_says(void)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_event *event;
	struct ibv_sa_path_rec *path;
	struct sockaddr_ib to;
	struct ibv_port_attr port;
	struct rdma_cm_id *id;

	alone();
	to = first_port();
	channel = rdma_create_event_channel();
	id = resolved(channel, to);
	EQUAL(rdma_resolve_route(id, 2000), 0);
	EQUAL(rdma_get_cm_event(channel, &event), 0);
	EQUAL(event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
	EQUAL(rdma_ack_cm_event(event), 0);
	EQUAL(ibv_query_port(id->verbs, id->port_num, &port), 0);
	EQUAL(port.link_layer, IBV_LINK_LAYER_INFINIBAND);
	CHECK(port.lid && port.sm_lid);
	EQUAL(id->route.num_paths, 1);
	path = id->route.path_rec;
	EQUAL(be16toh(path->dlid), port.lid);
	EQUAL(be16toh(path->slid), port.lid);
	EQUAL(be16toh(path->pkey), 0xffff);
	EQUAL(path->mtu, port.active_mtu);
	CHECK(!memcmp(&path->dgid, &to.sib_addr, 16));
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
}

static void nobody_has_the_gid(void)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct sockaddr_ib to;

	alone();
	to = nobody();
	channel = rdma_create_event_channel();
	id = resolved(channel, to);
	expect_error(channel, id, 2000, -EINVAL);
	/* The address is still resolved: a route may be asked for again. */
	expect_error(channel, id, 2000, -EINVAL);
	EQUAL(rdma_connect(id, NULL), -1);
	EQUAL(rdma_destroy_id(id), 0);
	/* An id without a channel waits, and fails. */
	EQUAL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000), 0);
	errno = 0;
	EQUAL(rdma_resolve_route(id, 2000), -1);
	EQUAL(errno, EINVAL);
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
	/* Of another subnet no port of ours is. */
	to.sib_addr.sib_addr8[7] ^= 1;
	EQUAL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 200), -1);
	EQUAL(rdma_destroy_id(id), 0);
}

/* With a manager that is switched off. */
static void nobody_answers(void)
{
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;

	alone();
	channel = rdma_create_event_channel();
	id = resolved(channel, first_port());
	expect_error(channel, id, 200, -ETIMEDOUT);
	EQUAL(rdma_destroy_id(id), 0);
	EQUAL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	struct sockaddr_ib to = first_port();
	EQUAL(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000), 0);
	errno = 0;
	EQUAL(rdma_resolve_route(id, 200), -1);
	EQUAL(errno, ETIMEDOUT);
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(channel);
}

static void names_and_hints(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST | RAI_FAMILY, .ai_family = AF_IB,
				       .ai_port_space = RDMA_PS_TCP }, *found;
	struct sockaddr_ib to;
	char name[INET6_ADDRSTRLEN];

	alone();
	to = first_port();
	CHECK(inet_ntop(AF_INET6, &to.sib_addr, name, sizeof(name)));
	EQUAL(rdma_getaddrinfo(name, "7471", &hints, &found), 0);
	EQUAL(found->ai_family, AF_IB);
	EQUAL(found->ai_dst_len, sizeof(struct sockaddr_ib));
	CHECK(!memcmp(&((struct sockaddr_ib *)found->ai_dst_addr)->sib_addr, &to.sib_addr, 16));
	EQUAL(be64toh(((struct sockaddr_ib *)found->ai_dst_addr)->sib_sid) & 0xffff, 7471);
	/* Without ibacm nobody knows a route beforehand. */
	EQUAL(found->ai_route_len, 0);
	rdma_freeaddrinfo(found);
	errno = 0;
	CHECK(rdma_getaddrinfo("no gid", "7471", &hints, &found));
}

static const struct test tests[] = {
	TEST(what_the_administrator_says),
	TEST(nobody_has_the_gid),
	TEST(nobody_answers),
	TEST(names_and_hints),
};

MAIN(tests)
