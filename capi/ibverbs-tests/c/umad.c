/* Management datagrams of programs, as the pages of libibumad have them: agents, questions, answers, and what is asked
 * wrongly. On a subnet of this host alone, whose manager is this process. */
#include "harness.h"
#include <infiniband/umad.h>
#include <endian.h>

enum {
	MAD = 256,
	GET = 1,
	GET_TABLE = 0x12,
	RESPONSE = 0x80,
	SA = 3,
	PERFORMANCE = 4,
	APPLICATION = 0x0a,
	QKEY = (int)0x80010000,
	CLASS_PORT_INFO = 1,
	NODE_RECORD = 0x11,
};

static uint8_t datagram[sizeof(struct ib_user_mad) + 4 * MAD];

static void alone(void)
{
	char port[16];
	snprintf(port, sizeof(port), "%d", 20000 + getpid() % 8000);
	setenv("IRONVERBS_UDP_PORT", port, 1);
	EQUAL(umad_init(), 0);
}

/* A question in `datagram`. */
static uint8_t *ask(int class, int version, int method, int attribute, uint64_t tid)
{
	memset(datagram, 0, sizeof(datagram));
	uint8_t *mad = umad_get_mad(datagram);
	uint64_t id = htobe64(tid);
	mad[0] = 1;
	mad[1] = class;
	mad[2] = version;
	mad[3] = method;
	memcpy(mad + 8, &id, 8);
	mad[17] = attribute;
	return mad;
}

static umad_port_t own_port(void)
{
	umad_port_t port;
	EQUAL(umad_get_port(NULL, 0, &port), 0);
	CHECK(port.base_lid && port.sm_lid && port.state == 4);
	EQUAL(umad_release_port(&port), 0);
	return port;
}

static int open_port(void)
{
	int fd = umad_open_port(NULL, 0);
	CHECK(fd >= 0);
	EQUAL(umad_get_fd(fd), fd);
	return fd;
}

static uint32_t tid_of(const uint8_t *mad)
{
	uint32_t low;
	memcpy(&low, mad + 12, 4);
	return be32toh(low);
}

static void names_and_ports(void)
{
	alone();
	char names[4][UMAD_CA_NAME_LEN], path[64];
	__be64 guids[4];
	umad_ca_t ca;
	umad_port_t port = own_port(), same;
	EQUAL(umad_get_cas_names(names, 4), 1);
	CHECK(!strcmp(names[0], port.ca_name));
	EQUAL(umad_get_ca(names[0], &ca), 0);
	EQUAL(ca.numports, 1);
	CHECK(ca.ports[1] && ca.ports[1]->base_lid == port.base_lid && ca.ports[1]->port_guid == port.port_guid);
	EQUAL(umad_release_ca(&ca), 0);
	EQUAL(umad_get_ca_portguids(names[0], guids, 4), 2);
	CHECK(!guids[0] && guids[1] == port.port_guid);
	EQUAL(umad_get_port(names[0], 1, &same), 0);
	EQUAL(umad_release_port(&same), 0);
	EQUAL(umad_get_issm_path(NULL, 0, path, sizeof(path)), 0);
	CHECK(strstr(path, "issm"));
	/* Of no device, and of a port that it has not. */
	CHECK(umad_get_port("nobody", 1, &same) < 0);
	CHECK(umad_get_port(names[0], 2, &same) < 0);
	CHECK(umad_get_ca("nobody", &ca) < 0);
	CHECK(umad_get_ca_portguids("nobody", guids, 4) < 0);
	CHECK(umad_get_issm_path("nobody", 1, path, sizeof(path)) < 0);
	CHECK(umad_open_port("nobody", 1) < 0);
	CHECK(umad_open_port(NULL, 77) < 0);
	EQUAL(umad_done(), 0);
}

static void a_question_and_its_answer(void)
{
	alone();
	umad_port_t port = own_port();
	int fd = open_port(), length = MAD;
	int agent = umad_register(fd, SA, 2, 0, NULL);
	CHECK(agent >= 0);
	EQUAL(umad_poll(fd, 0), -ETIMEDOUT);
	EQUAL(umad_recv(fd, datagram, &length, 0), -EWOULDBLOCK);
	ask(SA, 2, GET, CLASS_PORT_INFO, 0x7777);
	EQUAL(umad_set_addr(datagram, port.sm_lid, 1, port.sm_sl, QKEY), 0);
	EQUAL(umad_set_grh(datagram, NULL), 0);
	EQUAL(umad_set_pkey(datagram, 0), 0);
	EQUAL(umad_send(fd, agent, datagram, MAD, 1000, 3), 0);
	EQUAL(umad_poll(fd, 5000), 0);
	memset(datagram, 0, sizeof(datagram));
	EQUAL(umad_recv(fd, datagram, &length, 1000), agent);
	EQUAL(length, MAD);
	EQUAL(umad_status(datagram), 0);
	const uint8_t *mad = umad_get_mad(datagram);
	EQUAL(mad[3], GET | RESPONSE);
	EQUAL(tid_of(mad), 0x7777);
	EQUAL(be16toh(umad_get_mad_addr(datagram)->lid), port.sm_lid);
	EQUAL(be32toh(umad_get_mad_addr(datagram)->qpn), 1);
	EQUAL(umad_get_pkey(datagram), 0);
	EQUAL(umad_unregister(fd, agent), 0);
	EQUAL(umad_close_port(fd), 0);
}

/* Nobody has the LID: the question comes back, and says so. */
static void no_answer(void)
{
	alone();
	int fd = open_port(), length = MAD;
	int agent = umad_register(fd, PERFORMANCE, 1, 0, NULL);
	CHECK(agent >= 0);
	ask(PERFORMANCE, 1, GET, CLASS_PORT_INFO, 0x1234);
	umad_set_addr(datagram, 0x4321, 1, 0, QKEY);
	EQUAL(umad_send(fd, agent, datagram, MAD, 20, 2), 0);
	memset(datagram, 0, sizeof(datagram));
	EQUAL(umad_recv(fd, datagram, &length, 10000), agent);
	EQUAL(umad_status(datagram), ETIMEDOUT);
	EQUAL(tid_of(umad_get_mad(datagram)), 0x1234);
	EQUAL(((uint8_t *)umad_get_mad(datagram))[3], GET);
	/* One that expects none is not told of. */
	EQUAL(umad_send(fd, agent, datagram, MAD, 0, 0), 0);
	EQUAL(umad_poll(fd, 100), -ETIMEDOUT);
	EQUAL(umad_close_port(fd), 0);
}

/* A table is longer than a datagram. */
static void a_long_answer(void)
{
	alone();
	umad_port_t port = own_port();
	int fd = open_port(), length = MAD, needed;
	int agent = umad_register(fd, SA, 2, 1, NULL);
	CHECK(agent >= 0);
	/* The switch may not be found yet. */
	for (int size = 0; size < 2; ) {
		length = sizeof(datagram) - umad_size();
		uint8_t *mad = ask(SA, 2, GET_TABLE, NODE_RECORD, 9);
		umad_set_addr(datagram, port.sm_lid, 1, port.sm_sl, QKEY);
		EQUAL(umad_send(fd, agent, datagram, MAD, 1000, 3), 0);
		if (size == 0) {
			EQUAL(umad_recv(fd, datagram, &length, 20000), agent);
			size = length > MAD;
			continue;
		}
		needed = length;
		length = MAD;
		EQUAL(umad_poll(fd, 20000), 0);
		int taken = umad_recv(fd, datagram, &length, 0);
		if (taken == -ENOSPC) {
			CHECK(length > MAD);
			needed = length;
			/* It waits until there is room. */
			EQUAL(umad_recv(fd, datagram, &length, 0), agent);
			EQUAL(length, needed);
			EQUAL(mad[3], 0x92);
			size = 2;
		}
	}
	length = MAD - 1;
	CHECK(umad_recv(fd, datagram, &length, 0) < 0);
	EQUAL(umad_close_port(fd), 0);
}

/* One port serves what another asks. */
static void a_server_of_ones_own(void)
{
	alone();
	umad_port_t port = own_port();
	int server = open_port(), client = open_port(), length = MAD;
	long methods[16 / sizeof(long)] = { 1 << GET };
	int serves = umad_register(server, APPLICATION, 1, 0, methods);
	int asks = umad_register(client, APPLICATION, 1, 0, NULL);
	CHECK(serves >= 0 && asks >= 0);
	/* One agent has a method. */
	CHECK(umad_register(client, APPLICATION, 1, 0, methods) < 0);
	uint8_t *mad = ask(APPLICATION, 1, GET, 0x20, 0x5151);
	memcpy(mad + 64, "how are you", 12);
	umad_set_addr(datagram, port.base_lid, 1, 0, QKEY);
	EQUAL(umad_send(client, asks, datagram, MAD, 5000, 0), 0);
	memset(datagram, 0, sizeof(datagram));
	EQUAL(umad_recv(server, datagram, &length, 10000), serves);
	CHECK(!memcmp(mad + 64, "how are you", 12));
	/* The answer goes back to where it came from, under its number. */
	mad[3] |= RESPONSE;
	memcpy(mad + 64, "well", 5);
	EQUAL(umad_send(server, serves, datagram, MAD, 0, 0), 0);
	memset(datagram, 0, sizeof(datagram));
	EQUAL(umad_recv(client, datagram, &length, 10000), asks);
	EQUAL(umad_status(datagram), 0);
	EQUAL(tid_of(mad), 0x5151);
	CHECK(!memcmp(mad + 64, "well", 5));
	/* A port that is closed gives its methods back. */
	EQUAL(umad_close_port(server), 0);
	CHECK(umad_register(client, APPLICATION, 1, 0, methods) >= 0);
	EQUAL(umad_close_port(client), 0);
}

static void agents_by_attributes(void)
{
	alone();
	int fd = open_port();
	uint32_t agent = 99;
	struct umad_reg_attr attr = { .mgmt_class = 0x32, .mgmt_class_version = 1, .oui = 0x1405,
				      .method_mask = { 1 << GET }, .rmpp_version = 1 };
	EQUAL(umad_register2(fd, &attr, &agent), 0);
	EQUAL(umad_unregister(fd, agent), 0);
	attr.flags = UMAD_USER_RMPP | 1u << 30;
	CHECK(umad_register2(fd, &attr, &agent) > 0);
	EQUAL(attr.flags, UMAD_USER_RMPP);
	EQUAL(umad_register2(fd, &attr, &agent), 0);
	CHECK(umad_register2(fd, NULL, &agent) > 0);
	CHECK(umad_register2(fd, &attr, NULL) > 0);
	CHECK(umad_register2(-1, &attr, &agent) > 0);
	uint8_t oui[3] = { 0, 0x14, 0x06 };
	CHECK(umad_register_oui(fd, 0x33, 1, oui, NULL) >= 0);
	CHECK(umad_register_oui(fd, SA, 1, oui, NULL) < 0);
	EQUAL(umad_close_port(fd), 0);
}

static void asked_wrongly(void)
{
	alone();
	umad_port_t port = own_port();
	int fd = open_port(), length = MAD;
	int agent = umad_register(fd, SA, 2, 0, NULL);
	ask(SA, 2, GET, CLASS_PORT_INFO, 1);
	umad_set_addr(datagram, port.sm_lid, 1, 0, QKEY);
	CHECK(umad_send(fd, agent + 1, datagram, MAD, 100, 0) < 0);
	CHECK(umad_send(fd, -1, datagram, MAD, 100, 0) < 0);
	CHECK(umad_send(fd, agent, NULL, MAD, 100, 0) < 0);
	CHECK(umad_send(fd, agent, datagram, -1, 100, 0) < 0);
	CHECK(umad_send(fd, agent, datagram, 10, 100, 0) < 0);
	CHECK(umad_send(-1, agent, datagram, MAD, 100, 0) < 0);
	/* Not of the class that it is for. */
	((uint8_t *)umad_get_mad(datagram))[1] = PERFORMANCE;
	umad_send(fd, agent, datagram, MAD, 10, 0);
	CHECK(umad_recv(fd, NULL, &length, 0) < 0);
	CHECK(umad_recv(fd, datagram, NULL, 0) < 0);
	CHECK(umad_recv(-1, datagram, &length, 0) < 0);
	CHECK(umad_recv(0x7fffffff, datagram, &length, 0) < 0);
	CHECK(umad_poll(-1, 0) < 0);
	CHECK(umad_register(-1, SA, 2, 0, NULL) < 0);
	CHECK(umad_register(fd, 300, 2, 0, NULL) < 0);
	CHECK(umad_unregister(fd, agent + 7) < 0);
	CHECK(umad_unregister(fd, -1) < 0);
	EQUAL(umad_unregister(fd, agent), 0);
	CHECK(umad_unregister(fd, agent) < 0);
	CHECK(umad_send(fd, agent, datagram, MAD, 100, 0) < 0);
	EQUAL(umad_close_port(fd), 0);
	CHECK(umad_close_port(fd) < 0);
	CHECK(umad_send(fd, agent, datagram, MAD, 100, 0) < 0);
	EQUAL(umad_size(), sizeof(struct ib_user_mad));
	void *two = umad_alloc(2, umad_size() + MAD);
	CHECK(two);
	umad_free(two);
}

static const struct test tests[] = {
	TEST(names_and_ports),
	TEST(a_question_and_its_answer),
	TEST(no_answer),
	TEST(a_long_answer),
	TEST(a_server_of_ones_own),
	TEST(agents_by_attributes),
	TEST(asked_wrongly),
};

MAIN(tests)
