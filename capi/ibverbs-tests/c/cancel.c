/* Threads that a program cancels (pthread_cancel(3)) end as threads, wherever the cancellation finds them. */
#define _GNU_SOURCE
#include "harness.h"

static struct side a, b;
static struct ibv_comp_channel *channel;
static volatile bool begun;

static void cancelled(pthread_t thread)
{
	void *result;
	EQUAL(pthread_cancel(thread), 0);
	EQUAL(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
}

static void *waits_for_completions(void *unused)
{
	(void)unused;
	struct ibv_cq *cq;
	void *context;
	begun = true;
	ibv_get_cq_event(channel, &cq, &context);
	fail(__FILE__, __LINE__, "an event");
	return NULL;
}

static void *waits_for_news(void *unused)
{
	(void)unused;
	struct ibv_async_event event;
	begun = true;
	ibv_get_async_event(a.context, &event);
	fail(__FILE__, __LINE__, "an event");
	return NULL;
}

/* A cleanup handler of the program runs, and what it waited for goes to whoever waits next. */
static void cleaned(void *flag)
{
	*(bool *)flag = true;
}

static void *waits_with_a_handler(void *flag)
{
	pthread_cleanup_push(cleaned, flag);
	waits_for_completions(NULL);
	pthread_cleanup_pop(0);
	return NULL;
}

static pthread_t start(void *(*body)(void *), void *argument)
{
	pthread_t thread;
	begun = false;
	EQUAL(pthread_create(&thread, NULL, body, argument), 0);
	while (!begun)
		sched_yield();
	return thread;
}

static void who_waits(void)
{
	a = side_on(open_first());
	channel = ibv_create_comp_channel(a.context);
	struct ibv_cq *cq = ibv_create_cq(a.context, 4, &a, channel, 0);
	CHECK(channel && cq);
	bool flag = false;
	for (int round = 0; round < 20; round++) {
		/* It may not be there yet, be about to wait, or wait. */
		pthread_t threads[] = {
			start(waits_for_completions, NULL),
			start(waits_for_news, NULL),
			start(waits_with_a_handler, &flag),
		};
		usleep(round * 300);
		for (int i = 0; i < 3; i++)
			cancelled(threads[i]);
	}
	CHECK(flag);
	/* Nothing is held or lost. */
	make_qp(&a, IBV_QPT_RC);
	struct ibv_qp_init_attr init = qp_init(&a, IBV_QPT_RC);
	init.send_cq = init.recv_cq = cq;
	struct ibv_qp *qp = ibv_create_qp(a.pd, &init);
	CHECK(qp);
	EQUAL(to_init(qp), 0);
	EQUAL(ibv_req_notify_cq(cq, 0), 0);
	struct ibv_sge sge = part(&a, 0, 8);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	EQUAL(ibv_post_recv(qp, &wr, &bad), 0);
	EQUAL(to_state(qp, IBV_QPS_ERR), 0);
	struct ibv_cq *of;
	void *context;
	EQUAL(ibv_get_cq_event(channel, &of, &context), 0);
	CHECK(of == cq && context == &a);
	ibv_ack_cq_events(of, 1);
	expect(cq, 0, IBV_WC_WR_FLUSH_ERR);
	EQUAL(ibv_destroy_qp(qp), 0);
	EQUAL(ibv_destroy_cq(cq), 0);
	EQUAL(ibv_destroy_comp_channel(channel), 0);
}

enum work { POLLS, MESSAGES, REGIONS, QUEUES, DEVICES, KINDS };

static void *works(void *kind)
{
	struct ibv_wc wc;
	for (unsigned long i = 0;; i++) {
		switch ((enum work)(uintptr_t)kind) {
		case POLLS:
			ibv_poll_cq(a.cq, 1, &wc);
			break;
		case MESSAGES: {
			struct ibv_sge sge = part(&a, 0, i % 2 ? 8 : 60000);
			struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
			post_recv(&b, 1, 0, 1 << 16);
			post(&a, &wr);
			while (ibv_poll_cq(a.cq, 1, &wc) > 0 || ibv_poll_cq(b.cq, 1, &wc) > 0)
				;
			ibv_req_notify_cq(a.cq, 0);
			break;
		}
		case REGIONS: {
			struct ibv_mr *mr = ibv_reg_mr(a.pd, a.memory, 4096, ALL_ACCESS);
			ibv_dereg_mr(mr);
			break;
		}
		case QUEUES: {
			struct ibv_cq *cq = ibv_create_cq(a.context, 4, NULL, NULL, 0);
			ibv_destroy_cq(cq);
			break;
		}
		case DEVICES:
			ibv_close_device(open_first());
			break;
		case KINDS:
			return NULL;
		}
		begun = true;
		pthread_testcancel();
	}
}

static void work_on(const char *path)
{
	if (path)
		setenv("IRONVERBS_PATH", path, 1);
	for (uintptr_t kind = POLLS; kind < KINDS; kind++) {
		for (int round = 0; round < 15; round++) {
			/* What it was in the middle of may have been left so: it had no way to say. */
			pair(&a, &b, IBV_QPT_RC);
			pthread_t thread = start(works, (void *)kind);
			usleep(500 + round * 173);
			cancelled(thread);
		}
	}
	/* The library works on. */
	pair(&a, &b, IBV_QPT_RC);
	one_message(&a, &b);
}

static void who_works(void)
{
	work_on(NULL);
}

static void who_works_by_wire(void)
{
	work_on("wire");
}

static const struct test tests[] = {
	TEST(who_waits),
	TEST(who_works),
	TEST(who_works_by_wire),
};
MAIN(tests)
