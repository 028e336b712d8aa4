/* The interface of a device is deleted while programs have it open. Each case makes a network namespace of its own. */
#define _GNU_SOURCE
#include <net/if.h>
#include <sched.h>
#include "harness.h"

static void command(const char *line)
{
	if (system(line)) {
		fprintf(stderr, "%s: needs root and iproute2\n", line);
		exit(1);
	}
}

static void cable(const char *name, const char *peer, const char *address)
{
	char line[256];
	snprintf(line, sizeof line, "ip link add %s type veth peer name %s && ip address add %s dev %s && "
		 "ip link set %s up && ip link set %s up", name, peer, address, name, name, peer);
	command(line);
}

static void namespace_of_our_own(void)
{
	unsetenv("IRONVERBS_INTERFACES");
	if (unshare(CLONE_NEWNET)) {
		perror("unshare (needs root)");
		exit(1);
	}
	command("ip link set lo up");
	cable("va", "vb", "10.9.0.1/24");
	cable("vc", "vd", "10.9.2.1/24");
}

/* The device that has this address, which takes a moment to come up. */
static struct ibv_context *open_at(const char *address)
{
	struct in_addr wanted;
	inet_pton(AF_INET, address, &wanted);
	for (;; pause_ms(2)) {
		struct ibv_context *found = NULL;
		struct ibv_device **list = ibv_get_device_list(NULL);
		CHECK(list);
		for (int i = 0; list[i] && !found; i++) {
			struct ibv_context *context = ibv_open_device(list[i]);
			union ibv_gid gid;
			CHECK(context);
			struct ibv_port_attr port;
			if (!ibv_query_gid(context, 1, 0, &gid) && !memcmp(gid.raw + 12, &wanted, 4) &&
			    !ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE)
				found = context;
			else
				EQUAL(ibv_close_device(context), 0);
		}
		ibv_free_device_list(list);
		if (found)
			return found;
	}
}

/* Reads events up to the fatal one, which is the last there is. */
static void expect_fatal(struct ibv_context *context)
{
	struct ibv_async_event event;
	do {
		EQUAL(ibv_get_async_event(context, &event), 0);
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_DEVICE_FATAL);
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	EQUAL(poll(&fd, 1, 50), 0);
}

static bool listed(struct ibv_device *device)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	bool found = false;
	CHECK(list);
	for (int i = 0; list[i]; i++)
		found |= list[i] == device;
	ibv_free_device_list(list);
	return found;
}

static void told_flushed_and_released(void)
{
	namespace_of_our_own();
	struct side a = side_on(open_at("10.9.0.1")), b = side_on(open_at("10.9.2.1"));
	struct ibv_context *second = ibv_open_device(a.context->device);
	CHECK(second);
	struct ibv_device *device = a.context->device;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(a.context);
	CHECK(channel);
	EQUAL(ibv_destroy_cq(a.cq), 0);
	a.cq = ibv_create_cq(a.context, 16, NULL, channel, 0);
	CHECK(a.cq);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(a.pd, &shared);
	CHECK(srq);
	make_qp(&a, IBV_QPT_RC);
	make_qp(&b, IBV_QPT_RC);
	connect_to(&a, &b);
	connect_to(&b, &a);
	for (int id = 0; id < 3; id++)
		EQUAL(post_recv(&a, id, 0, 100), 0);
	struct ibv_sge sge = part(&b, 0, 100);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	EQUAL(post(&b, &wr), 0);
	expect(b.cq, 1, IBV_WC_SUCCESS);
	expect(a.cq, 0, IBV_WC_SUCCESS);
	EQUAL(ibv_req_notify_cq(a.cq, 0), 0);

	int before = if_nametoindex("va");
	command("ip link del va");
	/* Who sleeps is woken by what is flushed. */
	struct ibv_cq *cq;
	void *unused;
	EQUAL(ibv_get_cq_event(channel, &cq, &unused), 0);
	CHECK(cq == a.cq);
	ibv_ack_cq_events(cq, 1);
	expect(a.cq, 1, IBV_WC_WR_FLUSH_ERR);
	expect(a.cq, 2, IBV_WC_WR_FLUSH_ERR);
	expect_fatal(a.context);
	expect_fatal(second);

	CHECK(!listed(device));
	CHECK(!ibv_open_device(device));
	EQUAL(errno, ENODEV);
	CHECK(strlen(ibv_get_device_name(device)) > 0);
	struct ibv_device_attr attr;
	EQUAL(ibv_query_device(a.context, &attr), 0);
	EQUAL(attr.node_guid, ibv_get_device_guid(device));
	struct ibv_port_attr port;
	EQUAL(ibv_query_port(a.context, 1, &port), 0);
	EQUAL(port.state, IBV_PORT_DOWN);
	struct ibv_qp_attr state;
	struct ibv_qp_init_attr init;
	EQUAL(ibv_query_qp(a.qp, &state, IBV_QP_STATE, &init), 0);
	EQUAL(state.qp_state, IBV_QPS_ERR);

	/* Nothing new can be asked of it. */
	struct ibv_sge here = part(&a, 0, 100);
	wr = send_of(&here, IBV_WR_SEND);
	EQUAL(post(&a, &wr), EIO);
	EQUAL(post_recv(&a, 9, 0, 100), EIO);
	EQUAL(to_state(a.qp, IBV_QPS_RESET), EIO);
	CHECK(!ibv_alloc_pd(a.context));
	EQUAL(errno, EIO);
	CHECK(!ibv_create_cq(a.context, 1, NULL, NULL, 0));
	EQUAL(errno, EIO);
	CHECK(!ibv_create_comp_channel(a.context));
	EQUAL(errno, EIO);
	CHECK(!ibv_reg_mr(a.pd, a.memory, 4096, 0));
	EQUAL(errno, EIO);
	init = qp_init(&a, IBV_QPT_UD);
	CHECK(!ibv_create_qp(a.pd, &init));
	EQUAL(errno, EIO);
	struct ibv_ah_attr to = address(&b);
	CHECK(!ibv_create_ah(a.pd, &to));
	EQUAL(errno, EIO);

	/* The peer finds nobody. */
	wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	remote(&wr, &a, 0);
	EQUAL(post(&b, &wr), 0);
	expect(b.cq, 1, IBV_WC_RETRY_EXC_ERR);

	/* What comes back is another device. */
	char line[128];
	snprintf(line, sizeof line, "ip link add va index %d type veth peer name vb && ip link set vb up && "
		 "ip address add 10.9.0.1/24 dev va && ip link set va up", before);
	command(line);
	struct ibv_context *again = open_at("10.9.0.1");
	CHECK(again->device != device && !listed(device));
	struct ibv_pd *pd = ibv_alloc_pd(again);
	CHECK(pd);
	EQUAL(ibv_dealloc_pd(pd), 0);
	EQUAL(ibv_close_device(again), 0);
	CHECK(!ibv_alloc_pd(a.context));
	EQUAL(errno, EIO);

	EQUAL(ibv_destroy_qp(a.qp), 0);
	EQUAL(ibv_destroy_srq(srq), 0);
	EQUAL(ibv_dereg_mr(a.mr), 0);
	EQUAL(ibv_destroy_cq(a.cq), 0);
	EQUAL(ibv_destroy_comp_channel(channel), 0);
	EQUAL(ibv_dealloc_pd(a.pd), 0);
	EQUAL(ibv_close_device(a.context), 0);
	EQUAL(ibv_close_device(second), 0);
	struct ibv_async_event event;
	EQUAL(fcntl(b.context->async_fd, F_SETFL, O_NONBLOCK), 0);
	while (!ibv_get_async_event(b.context, &event)) {
		CHECK(event.event_type != IBV_EVENT_DEVICE_FATAL);
		ibv_ack_async_event(&event);
	}
	EQUAL(ibv_close_device(b.context), 0);
}

static void *wait_for_fatal(void *context)
{
	struct ibv_async_event event;
	do {
		EQUAL(ibv_get_async_event(context, &event), 0);
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_DEVICE_FATAL);
	EQUAL(event.element.port_num, 0);
	return NULL;
}

/* Threads sit in every call that blocks; closing without destroying works. */
static void who_sits_in_a_call_comes_back(void)
{
	namespace_of_our_own();
	struct side a = side_on(open_at("10.9.0.1"));
	make_qp(&a, IBV_QPT_UD);
	ready_datagrams(a.qp);
	EQUAL(post_recv(&a, 1, 0, 1000), 0);
	pthread_t thread;
	EQUAL(pthread_create(&thread, NULL, wait_for_fatal, a.context), 0);
	command("ip link del va");
	expect(a.cq, 1, IBV_WC_WR_FLUSH_ERR);
	EQUAL(pthread_join(thread, NULL), 0);
	EQUAL(ibv_close_device(a.context), 0);
}

static const struct test tests[] = {
	TEST(told_flushed_and_released),
	TEST(who_sits_in_a_call_comes_back),
};
MAIN(tests)
