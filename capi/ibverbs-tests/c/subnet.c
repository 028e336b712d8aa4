/* Reachability and SM events, as ibv_gid_reachable(3) and ibv_register_sm_events(3) have them. */
#include "harness.h"
#include <signal.h>
#include <sys/prctl.h>
#include <infiniband/ironverbs.h>

/* A group of processes of this test's own. */
static void alone(void)
{
	char port[16];
	snprintf(port, sizeof(port), "%d", 20000 + getpid() % 8000);
	setenv("IRONVERBS_UDP_PORT", port, 1);
}

static union ibv_gid gid_of(const char *address)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };
	if (inet_pton(AF_INET, address, gid.raw + 12) != 1)
		EQUAL(inet_pton(AF_INET6, address, gid.raw), 1);
	return gid;
}

#define FAILS(call, error) do { errno = 0; EQUAL(call, -1); EQUAL(errno, error); } while (0)

static void what_reachable_refuses(void)
{
	alone();
	struct ibv_context *context = open_first();
	union ibv_gid own, zero = { 0 }, far = gid_of("192.0.2.1");
	EQUAL(ibv_query_gid(context, 1, 0, &own), 0);
	FAILS(ibv_gid_reachable(NULL, 1, &own, 100), EINVAL);
	FAILS(ibv_gid_reachable(context, 1, NULL, 100), EINVAL);
	FAILS(ibv_gid_reachable(context, 2, &own, 100), EINVAL);
	FAILS(ibv_gid_reachable(context, 300, &own, 100), EINVAL);
	FAILS(ibv_gid_reachable(context, (uint)-1, &own, 100), EINVAL);
	FAILS(ibv_gid_reachable(context, 1, &zero, 100), EINVAL);
	/* From a loopback address there is no way to others. */
	FAILS(ibv_gid_reachable(context, 1, &far, 100), ENXIO);
	EQUAL(ibv_gid_reachable(context, 1, &own, 100), 0);
	EQUAL(ibv_gid_reachable(context, 0, &own, 0), 0);
	EQUAL(ibv_gid_reachable(context, 0, &own, -1), 0);
	EQUAL(ibv_close_device(context), 0);
}

static void what_registrations_refuse(void)
{
	alone();
	struct ibv_context *context = open_first();
	union ibv_gid gids[2] = { gid_of("10.0.0.1"), gid_of("fd00::1") };
	union ibv_gid groups[2] = { gid_of("239.1.1.1"), gid_of("ff02::5") }, zero = { 0 };
	FAILS(ibv_register_sm_events(NULL, IBV_SM_EVENT_ALL, 0, NULL), EINVAL);
	FAILS(ibv_register_sm_events(context, 0, 0, NULL), EINVAL);
	FAILS(ibv_register_sm_events(context, (ibv_sm_event_type_t)0x100, 0, NULL), EINVAL);
	FAILS(ibv_register_sm_events(context, IBV_SM_EVENT_UGID, 0, NULL), EINVAL);
	FAILS(ibv_register_sm_events(context, IBV_SM_EVENT_UGID, 2, NULL), EINVAL);
	FAILS(ibv_register_sm_events(context, IBV_SM_EVENT_UGID, -1, gids), EINVAL);
	FAILS(ibv_register_sm_events(context, IBV_SM_EVENT_UGID_ALL, 2, gids), EINVAL);
	FAILS(ibv_register_sm_events(context, IBV_SM_EVENT_UGID, 2, groups), EINVAL);
	FAILS(ibv_register_sm_events(context, IBV_SM_EVENT_MGID, 2, gids), EINVAL);
	FAILS(ibv_register_sm_events(context, IBV_SM_EVENT_UGID, 1, &zero), EINVAL);
	FAILS(ibv_unregister_sm_events(context, IBV_SM_EVENT_ALL, 0, NULL), EINVAL);
	EQUAL(ibv_register_sm_events(context, IBV_SM_EVENT_UGID, 2, gids), 0);
	EQUAL(ibv_register_sm_events(context, IBV_SM_EVENT_MGID, 2, groups), 0);
	EQUAL(ibv_register_sm_events(context, IBV_SM_EVENT_ALL, 0, NULL), 0);
	FAILS(ibv_unregister_sm_events(context, IBV_SM_EVENT_UGID, 1, gids), EINVAL);
	EQUAL(ibv_unregister_sm_events(context, IBV_SM_EVENT_UGID, 2, gids), 0);
	FAILS(ibv_unregister_sm_events(context, IBV_SM_EVENT_UGID, 2, gids), EINVAL);
	EQUAL(ibv_unregister_sm_events(context, IBV_SM_EVENT_ALL, 0, NULL), 0);
	/* What is left ends with the context. */
	EQUAL(ibv_close_device(context), 0);
}

/* The next event of the kind, whatever comes before it. */
static struct ibv_async_event next(struct ibv_context *context, enum ibv_event_type type)
{
	for (;;) {
		struct ibv_async_event event;
		EQUAL(ibv_get_async_event(context, &event), 0);
		if (event.event_type == type)
			return event;
		ibv_ack_async_event(&event);
	}
}

static void expect_gid(struct ibv_context *context, enum ibv_event_type type,
		       const union ibv_gid *gid)
{
	for (;;) {
		struct ibv_async_event event = next(context, type);
		const union ibv_gid *told = ibv_sm_event_gid(&event);
		CHECK(told);
		/* A device has several GIDs. */
		bool same = !memcmp(told, gid, sizeof(*gid));
		ibv_ack_async_event(&event);
		if (same)
			return;
	}
}

/* A process that has the device open, and does `act` with it. */
static pid_t other_process(void (*act)(void))
{
	int ready[2];
	EQUAL(pipe(ready), 0);
	pid_t child = fork();
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		act();
		EQUAL(write(ready[1], "", 1), 1);
		for (;;)
			pause();
	}
	char byte;
	EQUAL(read(ready[0], &byte, 1), 1);
	return child;
}

static void open_device(void)
{
	open_first();
}

static void have_a_queue_pair(void)
{
	struct side s = side_on(open_first());
	make_qp(&s, IBV_QPT_RC);
}

static void a_killed_process(void)
{
	alone();
	pid_t before = other_process(open_device);
	struct ibv_context *context = open_first(), *second = open_first();
	union ibv_gid own;
	EQUAL(ibv_query_gid(context, 1, 0, &own), 0);
	EQUAL(ibv_register_sm_events(context, IBV_SM_EVENT_UGID, 1, &own), 0);
	EQUAL(ibv_register_sm_events(second, IBV_SM_EVENT_ALL, 0, NULL), 0);
	EQUAL(kill(before, SIGKILL), 0);
	expect_gid(context, IBV_EVENT_GID_UNAVAIL, &own);
	expect_gid(second, IBV_EVENT_GID_UNAVAIL, &own);
	/* It is on this host, and the device has it: reachable. */
	EQUAL(ibv_gid_reachable(context, 1, &own, 100), 0);
	/* Of a context without registration, and of another's GIDs, nothing comes. */
	EQUAL(ibv_unregister_sm_events(context, IBV_SM_EVENT_UGID, 1, &own), 0);
	union ibv_gid else_where = gid_of("10.255.255.1");
	EQUAL(ibv_register_sm_events(context, IBV_SM_EVENT_UGID, 1, &else_where), 0);
	EQUAL(waitpid(before, NULL, 0), before);
	EQUAL(fcntl(context->async_fd, F_SETFL, O_NONBLOCK), 0);
	EQUAL(ibv_close_device(second), 0);
	struct ibv_async_event event;
	while (!ibv_get_async_event(context, &event)) {
		CHECK(!ibv_sm_event_gid(&event));
		ibv_ack_async_event(&event);
	}
	EQUAL(ibv_close_device(context), 0);
}

/* Starts another process after a registration. fork(2) leaves the child nothing of our device, so
 * that it is this program anew. */
static pid_t later_process(const char *act)
{
	pid_t child = fork();
	if (!child) {
		execl("/proc/self/exe", "subnet", act, (char *)NULL);
		_exit(127);
	}
	return child;
}

static void processes_that_come_and_go(void)
{
	alone();
	struct ibv_context *context = open_first();
	union ibv_gid own;
	EQUAL(ibv_query_gid(context, 1, 0, &own), 0);
	EQUAL(ibv_register_sm_events(context, IBV_SM_EVENT_UGID_ALL, 0, NULL), 0);
	for (int round = 0; round < 3; round++) {
		pid_t child = later_process("--hold");
		expect_gid(context, IBV_EVENT_GID_AVAIL, &own);
		EQUAL(kill(child, round == 1 ? SIGTERM : SIGKILL), 0);
		expect_gid(context, IBV_EVENT_GID_UNAVAIL, &own);
		EQUAL(waitpid(child, NULL, 0), child);
	}
	/* Another that only watches is nobody's peer: its end is no event, the next one's is. */
	pid_t watcher = later_process("--watch"), child = later_process("--hold");
	expect_gid(context, IBV_EVENT_GID_AVAIL, &own);
	EQUAL(kill(child, SIGKILL), 0);
	expect_gid(context, IBV_EVENT_GID_UNAVAIL, &own);
	EQUAL(kill(watcher, SIGKILL), 0);
	EQUAL(ibv_close_device(context), 0);
}

static void groups_come_and_go(void)
{
	alone();
	struct side s = side_on(open_first());
	union ibv_gid group = gid_of("239.7.7.7"), other = gid_of("239.7.7.8");
	EQUAL(ibv_register_sm_events(s.context, IBV_SM_EVENT_MGID, 1, &group), 0);
	make_qp(&s, IBV_QPT_UD);
	EQUAL(ibv_attach_mcast(s.qp, &other, 0), 0);
	EQUAL(ibv_attach_mcast(s.qp, &group, 0), 0);
	struct ibv_async_event event = next(s.context, IBV_EVENT_MCG_CREATED);
	EQUAL(sizeof(event), 16);
	const union ibv_gid *told = ibv_sm_event_gid(&event);
	CHECK(told && !memcmp(told, &group, sizeof(group)));
	CHECK(!strcmp(ibv_event_type_str(event.event_type), "multicast group created"));
	/* Twice is once. */
	ibv_ack_async_event(&event);
	ibv_ack_async_event(&event);
	EQUAL(ibv_detach_mcast(s.qp, &group, 0), 0);
	event = next(s.context, IBV_EVENT_MCG_DELETED);
	CHECK(!memcmp(ibv_sm_event_gid(&event), &group, sizeof(group)));
	/* One that is not acknowledged ends with the context. */
	EQUAL(ibv_close_device(s.context), 0);
}

static void nothing(int signal)
{
	(void)signal;
}

static void *interrupt(void *thread)
{
	for (;;) {
		usleep(20000);
		pthread_kill(*(pthread_t *)thread, SIGUSR1);
	}
	return NULL;
}

/* Runs in a namespace where 10.79.0.9 is on the link and nobody has it. */
static void a_signal_in_the_middle(void)
{
	alone();
	struct ibv_context *context = open_first();
	union ibv_gid nobody = gid_of("10.79.0.9");
	FAILS(ibv_gid_reachable(context, 1, &nobody, 200), ENXIO);
	struct sigaction action = { .sa_handler = nothing, .sa_flags = SA_RESTART };
	EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
	pthread_t self = pthread_self(), other;
	EQUAL(pthread_create(&other, NULL, interrupt, &self), 0);
	FAILS(ibv_gid_reachable(context, 1, &nobody, 60000), EINTR);
	_exit(0);
}

/* Runs on a subnet of 127.0.0.1 and 127.0.0.2 that nobody manages. */
static void a_silent_administrator(void)
{
	alone();
	struct ibv_context *context = open_first();
	union ibv_gid own, peer, nobody;
	EQUAL(ibv_query_gid(context, 1, 0, &own), 0);
	peer = nobody = own;
	peer.raw[15] = 2;
	nobody.raw[15] = 9;
	EQUAL(ibv_gid_reachable(context, 1, &own, 100), 0);
	FAILS(ibv_gid_reachable(context, 1, &peer, 150), EIO);
	FAILS(ibv_gid_reachable(context, 0, &peer, 1), EIO);
	FAILS(ibv_gid_reachable(context, 1, &nobody, 150), ENXIO);
	FAILS(ibv_gid_reachable(context, 2, &peer, 150), EINVAL);
	struct sigaction action = { .sa_handler = nothing, .sa_flags = SA_RESTART };
	EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
	pthread_t self = pthread_self(), other;
	EQUAL(pthread_create(&other, NULL, interrupt, &self), 0);
	FAILS(ibv_gid_reachable(context, 1, &peer, 60000), EINTR);
	/* A port of nobody's subnet is not waited for for ever. */
	struct ibv_port_attr port;
	EQUAL(ibv_query_port(context, 1, &port), 0);
	EQUAL(port.sm_lid, 0);
	_exit(0);
}

static const struct test tests[] = {
	TEST(what_reachable_refuses),
	TEST(what_registrations_refuse),
	TEST(a_killed_process),
	TEST(processes_that_come_and_go),
	TEST(groups_come_and_go),
};

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--in-namespace")) {
		alarm(120);
		a_signal_in_the_middle();
	}
	if (argc == 2 && !strcmp(argv[1], "--silent")) {
		alarm(120);
		a_silent_administrator();
	}
	if (argc == 2 && !strcmp(argv[1], "--hold")) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		have_a_queue_pair();
		for (;;)
			pause();
	}
	if (argc == 2 && !strcmp(argv[1], "--watch")) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		EQUAL(ibv_register_sm_events(open_first(), IBV_SM_EVENT_ALL, 0, NULL), 0);
		for (;;)
			pause();
	}
	return run_tests(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
