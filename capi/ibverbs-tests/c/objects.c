/* Pointers that are stale, copied, overwritten or of another context. */
#include "harness.h"

/* Every verb on what no longer exists. */
static void refused_everywhere(struct side *s, struct ibv_comp_channel *channel, struct ibv_ah *ah)
{
	struct ibv_sge sge = { 0 };
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND), *bad = NULL;
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv = NULL;
	struct ibv_wc wc;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;
	struct ibv_srq_attr srq_attr = { 0 };
	struct ibv_cq *cq;
	void *cq_context;

	CHECK(ibv_post_send(s->qp, &wr, &bad) > 0 && bad == &wr);
	CHECK(ibv_post_recv(s->qp, &recv, &bad_recv) > 0 && bad_recv == &recv);
	bad_recv = NULL;
	CHECK(ibv_post_srq_recv(s->srq, &recv, &bad_recv) > 0 && bad_recv == &recv);
	CHECK(ibv_poll_cq(s->cq, 1, &wc) < 0);
	EQUAL(ibv_req_notify_cq(s->cq, 0), ENOENT);
	EQUAL(ibv_resize_cq(s->cq, 4), ENOENT);
	EQUAL(ibv_modify_qp(s->qp, &attr, IBV_QP_STATE), ENOENT);
	EQUAL(ibv_query_qp(s->qp, &attr, 0, &init), ENOENT);
	EQUAL(ibv_query_srq(s->srq, &srq_attr), ENOENT);
	EQUAL(ibv_modify_srq(s->srq, &srq_attr, IBV_SRQ_LIMIT), ENOENT);
	EQUAL(ibv_destroy_qp(s->qp), ENOENT);
	EQUAL(ibv_destroy_srq(s->srq), ENOENT);
	EQUAL(ibv_destroy_ah(ah), ENOENT);
	EQUAL(ibv_dereg_mr(s->mr), ENOENT);
	EQUAL(ibv_rereg_mr(s->mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	EQUAL(ibv_destroy_cq(s->cq), ENOENT);
	errno = 0;
	EQUAL(ibv_get_cq_event(channel, &cq, &cq_context), -1);
	EQUAL(errno, ENOENT);
	EQUAL(ibv_destroy_comp_channel(channel), ENOENT);
	errno = 0;
	CHECK(!ibv_reg_mr(s->pd, s->memory, 64, 0) && errno == ENOENT);
	init = qp_init(s, IBV_QPT_RC);
	CHECK(!ibv_create_qp(s->pd, &init));
	CHECK(!ibv_create_ah(s->pd, &(struct ibv_ah_attr){ .is_global = 1, .port_num = 1 }));
	ibv_ack_cq_events(s->cq, 1);
	struct ibv_async_event event = { .element.qp = s->qp, .event_type = IBV_EVENT_QP_FATAL };
	ibv_ack_async_event(&event);
	CHECK(!ibv_qp_to_qp_ex(s->qp));
	EQUAL(ibv_dealloc_pd(s->pd), ENOENT);
}

static struct side everything(struct ibv_comp_channel **channel, struct ibv_ah **ah)
{
	struct ibv_context *context = open_first();
	struct side s = side_on(context);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_ah_attr attr = address(&s);
	*channel = ibv_create_comp_channel(context);
	EQUAL(ibv_destroy_cq(s.cq), 0);
	s.cq = ibv_create_cq(context, 16, NULL, *channel, 0);
	s.srq = ibv_create_srq(s.pd, &srq);
	*ah = ibv_create_ah(s.pd, &attr);
	make_qp(&s, IBV_QPT_RC);
	CHECK(*channel && s.cq && s.srq && *ah);
	return s;
}

static void destroyed_before(void)
{
	struct ibv_comp_channel *channel;
	struct ibv_ah *ah;
	struct side s = everything(&channel, &ah);
	EQUAL(ibv_destroy_qp(s.qp), 0);
	EQUAL(ibv_destroy_srq(s.srq), 0);
	EQUAL(ibv_destroy_ah(ah), 0);
	EQUAL(ibv_dereg_mr(s.mr), 0);
	EQUAL(ibv_destroy_cq(s.cq), 0);
	EQUAL(ibv_destroy_comp_channel(channel), 0);
	EQUAL(ibv_dealloc_pd(s.pd), 0);
	refused_everywhere(&s, channel, ah);
	EQUAL(ibv_close_device(s.context), 0);
	EQUAL(ibv_close_device(s.context), ENOENT);
	refused_everywhere(&s, channel, ah);
}

static void closed_with_everything_open(void)
{
	struct ibv_comp_channel *channel;
	struct ibv_ah *ah;
	struct side s = everything(&channel, &ah);
	struct ibv_async_event event;
	struct ibv_qp_init_attr init = qp_init(&s, IBV_QPT_RC);
	struct ibv_qp *other = ibv_create_qp(s.pd, &init);
	CHECK(other);
	EQUAL(to_init(other), 0);
	EQUAL(to_state(other, IBV_QPS_ERR), 0);
	EQUAL(ibv_get_async_event(s.context, &event), 0);
	/* The event is never acknowledged. */
	EQUAL(ibv_close_device(s.context), 0);
	EQUAL(ibv_destroy_qp(other), ENOENT);
	refused_everywhere(&s, channel, ah);
	errno = 0;
	CHECK(!ibv_alloc_pd(s.context) && errno == ENOENT);
	EQUAL(ibv_get_async_event(s.context, &event), -1);
	struct ibv_device_attr attr;
	EQUAL(ibv_query_device(s.context, &attr), ENOENT);
}

static void copies(void)
{
	struct ibv_comp_channel *channel;
	struct ibv_ah *ah;
	struct side s = everything(&channel, &ah), copy = s;
	struct ibv_qp qp = *s.qp;
	struct ibv_cq cq = *s.cq;
	struct ibv_srq srq = *s.srq;
	struct ibv_mr mr = *s.mr;
	struct ibv_pd pd = *s.pd;
	struct ibv_ah ah_copy = *ah;
	struct ibv_comp_channel channel_copy = *channel;
	copy.qp = &qp;
	copy.cq = &cq;
	copy.srq = &srq;
	copy.mr = &mr;
	copy.pd = &pd;
	refused_everywhere(&copy, &channel_copy, &ah_copy);
	struct ibv_context context = *s.context;
	CHECK(!ibv_alloc_pd(&context) && errno == ENOENT);
	EQUAL(ibv_close_device(&context), ENOENT);
	struct ibv_device device = *s.context->device;
	errno = 0;
	CHECK(!ibv_open_device(&device) && errno == ENOENT);
	CHECK(!ibv_get_device_name(&device));
	CHECK(!ibv_get_device_guid(&device));
	EQUAL(ibv_get_device_index(&device), -1);
	/* The originals are as they were. */
	EQUAL(to_init(s.qp), 0);
	EQUAL(ibv_destroy_qp(s.qp), 0);
	EQUAL(ibv_destroy_cq(s.cq), 0);
}

static void overwritten_handles(void)
{
	struct ibv_comp_channel *channel;
	struct ibv_ah *ah;
	struct side s = everything(&channel, &ah);
	uint32_t wrong[] = { 1, 0x80000000, 0xffffffff, 1 << 20 };
#define GARBLED(object, call) do { for (int i = 0; i < 4; i++) { \
	(object)->handle ^= wrong[i]; EQUAL(call, ENOENT); (object)->handle ^= wrong[i]; } } while (0)
	struct ibv_sge sge = { 0 };
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND), *bad;
	struct ibv_recv_wr recv = { 0 }, *bad_recv;
	GARBLED(s.qp, ibv_destroy_qp(s.qp));
	GARBLED(s.qp, ibv_post_send(s.qp, &wr, &bad));
	GARBLED(s.qp, ibv_post_recv(s.qp, &recv, &bad_recv));
	GARBLED(s.srq, ibv_destroy_srq(s.srq));
	GARBLED(s.cq, ibv_destroy_cq(s.cq));
	GARBLED(s.cq, ibv_req_notify_cq(s.cq, 0));
	GARBLED(s.mr, ibv_dereg_mr(s.mr));
	GARBLED(ah, ibv_destroy_ah(ah));
	GARBLED(s.pd, ibv_dealloc_pd(s.pd));
	EQUAL(ibv_destroy_qp(s.qp), 0);
	EQUAL(ibv_destroy_srq(s.srq), 0);
	EQUAL(ibv_destroy_cq(s.cq), 0);
	EQUAL(ibv_dereg_mr(s.mr), 0);
	EQUAL(ibv_destroy_ah(ah), 0);
	EQUAL(ibv_dealloc_pd(s.pd), 0);
}

static void other_contexts(void)
{
	struct side a = side_on(open_first()), b = side_on(open_first());
	CHECK(a.context != b.context);
	struct ibv_qp_init_attr init = qp_init(&a, IBV_QPT_RC);
	init.recv_cq = b.cq;
	errno = 0;
	CHECK(!ibv_create_qp(a.pd, &init) && errno == EINVAL);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(b.context);
	errno = 0;
	CHECK(!ibv_create_cq(a.context, 8, NULL, channel, 0) && errno == EINVAL);
	EQUAL(ibv_rereg_mr(a.mr, IBV_REREG_MR_CHANGE_PD, b.pd, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	a.mr->context = b.context;
	EQUAL(ibv_dereg_mr(a.mr), EINVAL);
	a.mr->context = a.context;
	EQUAL(ibv_dereg_mr(a.mr), 0);
}

static void null_pointers(void)
{
	struct side s = side_on(open_first());
	make_qp(&s, IBV_QPT_RC);
	EQUAL(ibv_close_device(NULL), EINVAL);
	EQUAL(ibv_dealloc_pd(NULL), EINVAL);
	EQUAL(ibv_dereg_mr(NULL), EINVAL);
	EQUAL(ibv_destroy_cq(NULL), EINVAL);
	EQUAL(ibv_destroy_qp(NULL), EINVAL);
	EQUAL(ibv_destroy_srq(NULL), EINVAL);
	EQUAL(ibv_destroy_ah(NULL), EINVAL);
	EQUAL(ibv_destroy_comp_channel(NULL), EINVAL);
	CHECK(!ibv_open_device(NULL) && errno == EINVAL);
	CHECK(!ibv_alloc_pd(NULL) && errno == EINVAL);
	CHECK(!ibv_create_qp(s.pd, NULL) && errno == EINVAL);
	CHECK(!ibv_create_ah(s.pd, NULL) && errno == EINVAL);
	struct ibv_qp_init_attr init = qp_init(&s, IBV_QPT_RC);
	init.send_cq = NULL;
	CHECK(!ibv_create_qp(s.pd, &init) && errno == EINVAL);
	EQUAL(ibv_modify_qp(s.qp, NULL, 0), EINVAL);
	ibv_ack_async_event(NULL);
	ibv_ack_cq_events(NULL, 1);
	/* An empty list is no failure. */
	struct ibv_send_wr *bad;
	struct ibv_recv_wr *bad_recv;
	EQUAL(ibv_post_send(s.qp, NULL, &bad), 0);
	EQUAL(ibv_post_recv(s.qp, NULL, &bad_recv), 0);
}

static void dead_address_handle(void)
{
	struct side s = side_on(open_first());
	make_qp(&s, IBV_QPT_UD);
	ready_datagrams(s.qp);
	struct ibv_ah_attr attr = address(&s);
	struct ibv_ah *ah = ibv_create_ah(s.pd, &attr);
	EQUAL(ibv_destroy_ah(ah), 0);
	struct ibv_sge sge = part(&s, 0, 8);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND), *bad = NULL;
	wr.wr.ud.ah = ah;
	CHECK(ibv_post_send(s.qp, &wr, &bad) > 0 && bad == &wr);
	wr.wr.ud.ah = NULL;
	CHECK(ibv_post_send(s.qp, &wr, &bad) > 0);
	expect_none(s.cq);
}

static long resident_kb(void)
{
	long pages = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%ld %ld", &pages, &resident) == 2);
	fclose(f);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void ten_thousand_rounds(void)
{
	struct side s = side_on(open_first());
	long before = 0;
	/* Tables in memory that is used as it is touched have a place for every number a QP of this process can get, 16384: only
	 * after all of them have been given out once must nothing grow. */
	for (int i = 0; i < 30000; i++) {
		struct ibv_cq *cq = ibv_create_cq(s.context, 16, NULL, NULL, 0);
		CHECK(cq);
		struct ibv_qp_init_attr init = qp_init(&s, IBV_QPT_RC);
		init.send_cq = cq;
		struct ibv_qp *qp = ibv_create_qp(s.pd, &init);
		CHECK(qp);
		struct ibv_mr *mr = ibv_reg_mr(s.pd, s.memory, 4096, ALL_ACCESS);
		CHECK(mr);
		EQUAL(ibv_destroy_qp(qp), 0);
		EQUAL(ibv_destroy_cq(cq), 0);
		EQUAL(ibv_dereg_mr(mr), 0);
		if (i == 20000)
			before = resident_kb();
	}
	CHECK(resident_kb() - before < 1024);
}

static struct ibv_cq *shared;
static volatile bool stop;

static void *poll_shared(void *unused)
{
	struct ibv_wc wc;
	while (!stop)
		ibv_poll_cq(__atomic_load_n(&shared, __ATOMIC_ACQUIRE), 1, &wc);
	return unused;
}

static void destroyed_under_a_poller(void)
{
	struct side s = side_on(open_first());
	shared = s.cq;
	pthread_t thread;
	EQUAL(pthread_create(&thread, NULL, poll_shared, NULL), 0);
	for (int i = 0; i < 2000; i++) {
		struct ibv_cq *next = ibv_create_cq(s.context, 16, NULL, NULL, 0), *old = shared;
		CHECK(next);
		EQUAL(ibv_destroy_cq(old), 0);
		__atomic_store_n(&shared, next, __ATOMIC_RELEASE);
	}
	stop = true;
	pthread_join(thread, NULL);
}

static const struct test tests[] = {
	TEST(destroyed_before),
	TEST(closed_with_everything_open),
	TEST(copies),
	TEST(overwritten_handles),
	TEST(other_contexts),
	TEST(null_pointers),
	TEST(dead_address_handle),
	TEST(ten_thousand_rounds),
	TEST(destroyed_under_a_poller),
};
MAIN(tests)
