/* A program that transfers has children of every kind: it is not disturbed, and what they have of it fails. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include "harness.h"

extern char **environ;

enum { LONGEST = 1 << 16, DEPTH = 4, CHILDREN = 5 };

struct names {
	union ibv_gid gid;
	uint32_t qpn;
};

static struct side s;
static struct ibv_comp_channel *channel;
static volatile bool stop;
static volatile unsigned long back;

/* Makes a queue pair and connects it to the one at the other end of a socket. */
static void connect_over(int socket)
{
	s = side_on(open_first());
	channel = ibv_create_comp_channel(s.context);
	CHECK(channel);
	make_qp(&s, IBV_QPT_RC);
	struct names ours = { s.gid, s.qp->qp_num }, theirs;
	EQUAL(write(socket, &ours, sizeof ours), sizeof ours);
	EQUAL(read(socket, &theirs, sizeof theirs), sizeof theirs);
	struct ibv_qp other = { .qp_num = theirs.qpn };
	struct side peer = { .gid = theirs.gid, .qp = &other };
	connect_to(&s, &peer);
	for (int slot = 0; slot < DEPTH; slot++)
		EQUAL(post_recv(&s, slot, slot * LONGEST, LONGEST), 0);
	char ready = 1;
	EQUAL(write(socket, &ready, 1), 1);
	EQUAL(read(socket, &ready, 1), 1);
}

static int send_slot(int slot, uint32_t length)
{
	struct ibv_sge sge = part(&s, slot * LONGEST, length);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	wr.wr_id = 100 + slot;
	return post(&s, &wr);
}

/* The other process: sends back what comes, until it is killed. */
static void echo(int socket)
{
	connect_over(socket);
	for (;;) {
		struct ibv_wc wc = completion(s.cq);
		EQUAL(wc.status, IBV_WC_SUCCESS);
		if (wc.wr_id < 100)
			EQUAL(send_slot(wc.wr_id, wc.byte_len), 0);
		else
			EQUAL(post_recv(&s, wc.wr_id - 100, (wc.wr_id - 100) * LONGEST, LONGEST), 0);
	}
}

/* Sends to the echo and compares, in a thread of its own. */
static void *transfer(void *unused)
{
	unsigned long next = 0;
	uint32_t lengths[DEPTH];
	while (!stop || next != back) {
		while (next - back < DEPTH && !stop) {
			int slot = next % DEPTH;
			lengths[slot] = next % 5 ? 1 + next % 2000 : LONGEST;
			memset(s.memory + (DEPTH + slot) * LONGEST, (int)next, lengths[slot]);
			EQUAL(send_slot(DEPTH + slot, lengths[slot]), 0);
			next++;
		}
		struct ibv_wc wc = completion(s.cq);
		EQUAL(wc.status, IBV_WC_SUCCESS);
		if (wc.wr_id >= 100)
			continue;
		const char *got = s.memory + wc.wr_id * LONGEST;
		EQUAL(wc.byte_len, lengths[back % DEPTH]);
		for (uint32_t i = 0; i < wc.byte_len; i++)
			EQUAL(got[i], (char)back);
		EQUAL(post_recv(&s, wc.wr_id, wc.wr_id * LONGEST, LONGEST), 0);
		back++;
	}
	return unused;
}

/* What a copy of the program finds of it: nothing works, nothing hangs. */
static int everything_fails(void)
{
	struct ibv_wc wc;
	struct ibv_cq *cq;
	void *context;
	struct ibv_async_event event;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init = qp_init(&s, IBV_QPT_RC);
	alarm(60);
	bool fails[] = {
		ibv_poll_cq(s.cq, 1, &wc) < 0,
		send_slot(0, 8) != 0,
		post_recv(&s, 0, 0, 8) != 0,
		ibv_req_notify_cq(s.cq, 0) != 0,
		ibv_get_cq_event(channel, &cq, &context) == -1 && errno == EPERM,
		ibv_get_async_event(s.context, &event) == -1 && errno == EPERM,
		!ibv_alloc_pd(s.context) && errno == EPERM,
		!ibv_create_cq(s.context, 1, NULL, NULL, 0),
		!ibv_create_qp(s.pd, &init),
		!ibv_reg_mr(s.pd, s.memory, 4096, 0),
		to_state(s.qp, IBV_QPS_ERR) != 0,
		ibv_destroy_qp(s.qp) != 0,
		ibv_dereg_mr(s.mr) != 0,
		ibv_destroy_cq(s.cq) != 0,
		ibv_dealloc_pd(s.pd) != 0,
		ibv_close_device(s.context) != 0,
	};
	ibv_ack_cq_events(s.cq, 1);
	ibv_query_qp(s.qp, &attr, IBV_QP_STATE, &init);
	for (size_t i = 0; i < sizeof fails / sizeof fails[0]; i++)
		if (!fails[i])
			return 1 + i;
	return 0;
}

/* One that begins anew has a device of its own, beside its parent's. */
static int starts_over(void)
{
	alarm(60);
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	one_message(&a, &b);
	return 0;
}

static void ended_well(pid_t child, const char *how)
{
	int status;
	EQUAL(waitpid(child, &status, 0), child);
	if (status)
		fprintf(stderr, "%s: status %#x\n", how, status);
	EQUAL(status, 0);
}

static pid_t raw_clone(void)
{
	return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

static void have_children(void)
{
	char *const arguments[] = { "true", NULL };
	pid_t child;
	if (!(child = fork()))
		_exit(0);
	ended_well(child, "fork, _exit");
	if (!(child = fork()))
		exit(0);
	ended_well(child, "fork, exit");
	if (!(child = fork()))
		_exit(everything_fails());
	ended_well(child, "fork, calls");
	if (!(child = fork()))
		execvp("true", arguments);
	ended_well(child, "fork, exec");
	if (!(child = vfork()))
		_exit(0);
	ended_well(child, "vfork, _exit");
	if (!(child = vfork())) {
		execvp("true", arguments);
		_exit(1);
	}
	ended_well(child, "vfork, exec");
	EQUAL(posix_spawnp(&child, "true", NULL, NULL, arguments, environ), 0);
	ended_well(child, "posix_spawn");
	if (!(child = raw_clone()))
		_exit(0);
	ended_well(child, "clone, _exit");
	if (!(child = raw_clone()))
		_exit(everything_fails());
	ended_well(child, "clone, calls");
	if (!(child = fork())) {
		starts_over();
		exit(0);
	}
	ended_well(child, "fork, starts over");
}

static void children_in_mid_transfer(void)
{
	int ends[2];
	EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	/* Before the library does anything, so that it is a process like any other. */
	pid_t peer = fork();
	if (!peer) {
		alarm(120);
		close(ends[0]);
		echo(ends[1]);
	}
	close(ends[1]);
	connect_over(ends[0]);
	pthread_t thread;
	EQUAL(pthread_create(&thread, NULL, transfer, NULL), 0);
	while (back < 100)
		usleep(100);
	for (int i = 0; i < CHILDREN; i++)
		have_children();
	/* One that outlives all this. */
	pid_t child = fork();
	if (!child) {
		usleep(300000);
		_exit(everything_fails());
	}
	unsigned long before = back;
	while (back < before + 1000)
		usleep(100);
	stop = true;
	EQUAL(pthread_join(thread, NULL), 0);
	/* Its own objects are whole. */
	EQUAL(ibv_destroy_qp(s.qp), 0);
	EQUAL(ibv_dereg_mr(s.mr), 0);
	EQUAL(ibv_destroy_cq(s.cq), 0);
	EQUAL(ibv_destroy_comp_channel(channel), 0);
	EQUAL(ibv_dealloc_pd(s.pd), 0);
	EQUAL(ibv_close_device(s.context), 0);
	EQUAL(kill(peer, SIGKILL), 0);
	EQUAL(waitpid(peer, NULL, 0), peer);
	ended_well(child, "fork, sleep, calls");
}

static void local(void)
{
	children_in_mid_transfer();
}

static void wire(void)
{
	setenv("IRONVERBS_PATH", "wire", 1);
	children_in_mid_transfer();
}

static const struct test tests[] = {
	TEST(local),
	TEST(wire),
};
MAIN(tests)
