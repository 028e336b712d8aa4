#include "harness.h"

static void capability_above_the_limit(void)
{
	struct side s = side_on(open_first());
	struct ibv_device_attr limits;
	EQUAL(ibv_query_device(s.context, &limits), 0);
	struct ibv_qp_init_attr good = qp_init(&s, IBV_QPT_RC), init;
#define TOO_MUCH(field, value) do { \
	init = good; init.cap.field = (value); errno = 0; \
	CHECK(!ibv_create_qp(s.pd, &init)); EQUAL(errno, EINVAL); } while (0)
	TOO_MUCH(max_send_wr, limits.max_qp_wr + 1);
	TOO_MUCH(max_recv_wr, limits.max_qp_wr + 1);
	TOO_MUCH(max_send_sge, limits.max_sge + 1);
	TOO_MUCH(max_recv_sge, limits.max_sge + 1);
	TOO_MUCH(max_inline_data, 1 << 24);
	init = good;
	init.cap.max_send_wr = limits.max_qp_wr;
	init.cap.max_send_sge = limits.max_sge;
	struct ibv_qp *qp = ibv_create_qp(s.pd, &init);
	CHECK(qp);
	CHECK((int)init.cap.max_send_wr >= limits.max_qp_wr && (int)init.cap.max_send_sge >= limits.max_sge);
	EQUAL(ibv_destroy_qp(qp), 0);
}

static void granted_is_what_query_says(void)
{
	struct side s = side_on(open_first());
	struct ibv_qp_init_attr init = qp_init(&s, IBV_QPT_RC), asked = init, queried;
	struct ibv_qp *qp = ibv_create_qp(s.pd, &init);
	CHECK(qp);
	CHECK(init.cap.max_send_wr >= asked.cap.max_send_wr && init.cap.max_recv_wr >= asked.cap.max_recv_wr);
	CHECK(init.cap.max_inline_data >= asked.cap.max_inline_data);
	CHECK(qp->context == s.context && qp->pd == s.pd && qp->send_cq == s.cq && qp->recv_cq == s.cq);
	CHECK(qp->qp_context == &s && !qp->srq && qp->qp_type == IBV_QPT_RC);
	EQUAL(qp->state, IBV_QPS_RESET);
	CHECK(qp->qp_num > 1 && qp->qp_num < 1 << 24);
	struct ibv_qp_attr attr;
	memset(&attr, 0xff, sizeof attr);
	EQUAL(ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CAP, &queried), 0);
	EQUAL(attr.qp_state, IBV_QPS_RESET);
	EQUAL(memcmp(&queried.cap, &init.cap, sizeof init.cap), 0);
	CHECK(queried.send_cq == s.cq && queried.recv_cq == s.cq && queried.qp_type == IBV_QPT_RC);
}

static void types_that_are_lacking(void)
{
	struct side s = side_on(open_first());
	struct ibv_qp_init_attr init = qp_init(&s, IBV_QPT_RAW_PACKET);
	errno = 0;
	CHECK(ibv_create_qp(s.pd, &init) || errno == EPERM);
	init.qp_type = IBV_QPT_DRIVER;
	errno = 0;
	CHECK(!ibv_create_qp(s.pd, &init) && errno == EOPNOTSUPP);
	init.qp_type = 77;
	errno = 0;
	CHECK(!ibv_create_qp(s.pd, &init) && errno == EINVAL);
}

static void srq_makes_receive_sizes_void(void)
{
	struct side s = side_on(open_first());
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 16, .max_sge = 2 } };
	s.srq = ibv_create_srq(s.pd, &srq);
	CHECK(s.srq);
	struct ibv_qp_init_attr init = qp_init(&s, IBV_QPT_RC);
	init.cap.max_recv_wr = init.cap.max_recv_sge = 0xffffffff;
	struct ibv_qp *qp = ibv_create_qp(s.pd, &init);
	CHECK(qp);
	CHECK(qp->srq == s.srq);
	EQUAL(ibv_destroy_srq(s.srq), EBUSY);
	EQUAL(ibv_destroy_qp(qp), 0);
	EQUAL(ibv_destroy_srq(s.srq), 0);
}

static void objects_in_use_are_busy(void)
{
	struct ibv_context *context = open_first();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel && channel->fd >= 0 && channel->context == context);
	struct side s = side_on(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, &s, channel, 0);
	CHECK(cq && cq->channel == channel && cq->cq_context == &s && cq->cqe >= 8);
	EQUAL(channel->refcnt, 1);
	s.cq = cq;
	make_qp(&s, IBV_QPT_RC);
	EQUAL(ibv_destroy_cq(cq), EBUSY);
	EQUAL(ibv_dealloc_pd(s.pd), EBUSY);
	EQUAL(ibv_destroy_comp_channel(channel), EBUSY);
	/* And they still work. */
	EQUAL(to_init(s.qp), 0);
	EQUAL(post_recv(&s, 1, 0, 8), 0);
	EQUAL(to_state(s.qp, IBV_QPS_ERR), 0);
	expect(cq, 1, IBV_WC_WR_FLUSH_ERR);
	EQUAL(ibv_destroy_qp(s.qp), 0);
	EQUAL(ibv_destroy_cq(cq), 0);
	EQUAL(channel->refcnt, 0);
	EQUAL(ibv_destroy_comp_channel(channel), 0);
	EQUAL(ibv_dealloc_pd(s.pd), EBUSY);
	EQUAL(ibv_dereg_mr(s.mr), 0);
	EQUAL(ibv_dealloc_pd(s.pd), 0);
	EQUAL(ibv_close_device(context), 0);
}

static void state_machine(void)
{
	struct side a = side_on(open_first());
	make_qp(&a, IBV_QPT_RC);
	EQUAL(to_state(a.qp, IBV_QPS_RESET), 0);
	EQUAL(to_state(a.qp, IBV_QPS_RTR), EINVAL);
	EQUAL(to_state(a.qp, IBV_QPS_INIT), EINVAL);
	EQUAL(a.qp->state, IBV_QPS_RESET);
	EQUAL(to_init(a.qp), 0);
	EQUAL(a.qp->state, IBV_QPS_INIT);

	struct ibv_qp_attr attr = rtr_attr(&a), now;
	struct ibv_qp_init_attr init;
	for (int bit = 1; bit < 1 << 21; bit <<= 1)
		if (RTR_RC & bit && bit != IBV_QP_STATE)
			EQUAL(ibv_modify_qp(a.qp, &attr, RTR_RC & ~bit), EINVAL);
	attr.ah_attr.is_global = 0;
	EQUAL(ibv_modify_qp(a.qp, &attr, RTR_RC), EINVAL);
	attr.ah_attr.is_global = 1;
	attr.path_mtu = 9;
	EQUAL(ibv_modify_qp(a.qp, &attr, RTR_RC), EINVAL);
	attr.path_mtu = IBV_MTU_1024;
	EQUAL(ibv_query_qp(a.qp, &now, IBV_QP_STATE, &init), 0);
	EQUAL(now.qp_state, IBV_QPS_INIT);
	EQUAL(ibv_modify_qp(a.qp, &attr, RTR_RC), 0);
	attr = rts_attr();
	EQUAL(ibv_modify_qp(a.qp, &attr, RTS_RC & ~IBV_QP_TIMEOUT), EINVAL);
	EQUAL(ibv_modify_qp(a.qp, &attr, RTS_RC), 0);

	EQUAL(ibv_query_qp(a.qp, &now, 0xffff, &init), 0);
	EQUAL(now.qp_state, IBV_QPS_RTS);
	EQUAL(now.dest_qp_num, a.qp->qp_num);
	EQUAL(now.path_mtu, IBV_MTU_1024);
	EQUAL(now.timeout, 12);
	EQUAL(now.retry_cnt, 3);
	EQUAL(now.rnr_retry, 7);
	EQUAL(now.min_rnr_timer, 1);
	EQUAL(now.max_rd_atomic, 4);
	EQUAL(now.max_dest_rd_atomic, 4);
	EQUAL(now.port_num, 1);
	EQUAL(now.ah_attr.is_global, 1);
	EQUAL(memcmp(&now.ah_attr.grh.dgid, &a.gid, 16), 0);
	EQUAL(to_state(a.qp, IBV_QPS_RESET), 0);
	EQUAL(to_init(a.qp), 0);
}

static void posting_by_state(void)
{
	struct side a = side_on(open_first());
	make_qp(&a, IBV_QPT_RC);
	struct ibv_sge sge = part(&a, 0, 8);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	EQUAL(post_recv(&a, 1, 0, 8), EINVAL);
	EQUAL(post(&a, &wr), EINVAL);
	EQUAL(to_init(a.qp), 0);
	EQUAL(post(&a, &wr), EINVAL);
	EQUAL(post_recv(&a, 1, 0, 8), 0);
	EQUAL(post_recv(&a, 2, 0, 8), 0);
	EQUAL(to_state(a.qp, IBV_QPS_ERR), 0);
	wr.send_flags = 0;
	wr.wr_id = 3;
	EQUAL(post(&a, &wr), 0);
	EQUAL(post_recv(&a, 4, 0, 8), 0);
	for (uint64_t id = 1; id <= 4; id++) {
		struct ibv_wc wc = expect(a.cq, id, IBV_WC_WR_FLUSH_ERR);
		EQUAL(wc.qp_num, a.qp->qp_num);
		EQUAL(!!(wc.opcode & IBV_WC_RECV), id != 3);
	}
}

static void reset_drops_completions(void)
{
	struct side a = side_on(open_first());
	make_qp(&a, IBV_QPT_RC);
	EQUAL(to_init(a.qp), 0);
	EQUAL(post_recv(&a, 1, 0, 8), 0);
	EQUAL(to_state(a.qp, IBV_QPS_ERR), 0);
	EQUAL(to_state(a.qp, IBV_QPS_RESET), 0);
	expect_none(a.cq);
}

static void full_queues(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_recv_wr list[20], *bad = NULL;
	struct ibv_sge sge = part(&b, 0, 8);
	for (int i = 0; i < 20; i++)
		list[i] = (struct ibv_recv_wr){ .wr_id = i, .sg_list = &sge, .num_sge = 1,
			.next = i < 19 ? &list[i + 1] : NULL };
	EQUAL(ibv_post_recv(b.qp, list, &bad), ENOMEM);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	EQUAL(ibv_query_qp(b.qp, &attr, 0, &init), 0);
	CHECK(bad == &list[init.cap.max_recv_wr]);
	EQUAL(to_state(b.qp, IBV_QPS_ERR), 0);
	for (uint32_t i = 0; i < init.cap.max_recv_wr; i++)
		expect(b.cq, i, IBV_WC_WR_FLUSH_ERR);
	expect_none(b.cq);

	/* Sends to a peer that no longer answers stay in the queue. */
	struct ibv_send_wr sends[40], *bad_send = NULL;
	sge = part(&a, 0, 8);
	for (int i = 0; i < 40; i++) {
		sends[i] = send_of(&sge, IBV_WR_SEND);
		sends[i].wr_id = i;
		sends[i].next = i < 39 ? &sends[i + 1] : NULL;
	}
	EQUAL(ibv_post_send(a.qp, sends, &bad_send), ENOMEM);
	EQUAL(ibv_query_qp(a.qp, &attr, 0, &init), 0);
	CHECK(bad_send == &sends[init.cap.max_send_wr]);
}

/* A list at an odd address, as in a packed structure: with the kernel's devices it is copied. */
static void lists_at_odd_addresses(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct __attribute__((packed)) {
		char before;
		struct ibv_sge sge[2];
	} to = { .sge = { part(&b, 0, 8), part(&b, 100, 8) } }, from = { .sge = { part(&a, 0, 4), part(&a, 50, 12) } };
	memcpy(a.memory, "abcd", 4);
	memcpy(a.memory + 50, "efghijklmnop", 12);
	struct ibv_sge *receives = (void *)((char *)&to + 1), *sends = (void *)((char *)&from + 1);
	for (int flags = 0; flags <= IBV_SEND_INLINE; flags += IBV_SEND_INLINE) {
		struct ibv_recv_wr recv = { .wr_id = 7, .num_sge = 2, .sg_list = receives }, *bad_recv;
		EQUAL(ibv_post_recv(b.qp, &recv, &bad_recv), 0);
		struct ibv_send_wr wr = send_of(sends, IBV_WR_SEND);
		wr.num_sge = 2;
		wr.send_flags |= flags;
		EQUAL(post(&a, &wr), 0);
		expect(a.cq, 1, IBV_WC_SUCCESS);
		expect(b.cq, 7, IBV_WC_SUCCESS);
		CHECK(!memcmp(b.memory, "abcdefgh", 8) && !memcmp(b.memory + 100, "ijklmnop", 8));
		memset(b.memory, 0, 200);
	}
}

static void bad_request_in_a_list(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	EQUAL(post_recv(&b, 9, 0, 64), 0);
	struct ibv_sge sge[5] = { part(&a, 0, 8), part(&a, 8, 8), part(&a, 16, 8), part(&a, 24, 8), part(&a, 32, 8) };
	struct ibv_send_wr good = send_of(sge, IBV_WR_SEND), wrong = good, after = good, *bad = NULL;
	good.next = &wrong;
	wrong.next = &after;
	wrong.num_sge = 5;
	EQUAL(ibv_post_send(a.qp, &good, &bad), EINVAL);
	CHECK(bad == &wrong);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	expect(b.cq, 9, IBV_WC_SUCCESS);
	expect_none(a.cq);

	enum ibv_wr_opcode codes[] = { IBV_WR_BIND_MW, IBV_WR_TSO, 200 };
	for (int i = 0; i < 3; i++) {
		struct ibv_send_wr wr = send_of(sge, codes[i]);
		bad = NULL;
		EQUAL(ibv_post_send(a.qp, &wr, &bad), EINVAL);
		CHECK(bad == &wr);
	}
	struct ibv_send_wr wr = send_of(sge, IBV_WR_SEND);
	wr.num_sge = -1;
	EQUAL(post(&a, &wr), EINVAL);
	wr.num_sge = 1;
	wr.sg_list = NULL;
	EQUAL(post(&a, &wr), EINVAL);
	struct ibv_recv_wr recv = { .num_sge = -5, .sg_list = sge }, *bad_recv = NULL;
	EQUAL(ibv_post_recv(a.qp, &recv, &bad_recv), EINVAL);
	CHECK(bad_recv == &recv);
}

static void inline_data(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	EQUAL(ibv_query_qp(a.qp, &attr, 0, &init), 0);
	/* Memory that was never registered, with lkey 0; changed as soon as the call returns. */
	char *data = malloc(init.cap.max_inline_data + 1);
	memset(data, 'i', init.cap.max_inline_data + 1);
	struct ibv_sge sges[2] = { { .addr = (uintptr_t)data, .length = 5 }, { .addr = (uintptr_t)data, .length = 6 } };
	struct ibv_send_wr wr = send_of(sges, IBV_WR_SEND), *bad = NULL;
	wr.send_flags |= IBV_SEND_INLINE;
	wr.num_sge = 2;
	memcpy(data, "hello world", 11);
	sges[1].addr += 5;
	EQUAL(post_recv(&b, 1, 0, 64), 0);
	EQUAL(post(&a, &wr), 0);
	memset(data, 'x', 11);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	EQUAL(expect(b.cq, 1, IBV_WC_SUCCESS).byte_len, 11);
	CHECK(!memcmp(b.memory, "hello world", 11));

	sges[0].length = init.cap.max_inline_data + 1;
	wr.num_sge = 1;
	EQUAL(ibv_post_send(a.qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
	expect_none(a.cq);
	struct ibv_send_wr read = send_of(sges, IBV_WR_RDMA_READ);
	read.send_flags |= IBV_SEND_INLINE;
	EQUAL(post(&a, &read), EINVAL);
}

static void used_again_after_an_error(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	for (int round = 0; round < 3; round++) {
		struct ibv_sge sge = part(&a, 0, 3000);
		struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
		snprintf(a.memory, 32, "round %d", round);
		EQUAL(post_recv(&b, 5, 0, 4096), 0);
		EQUAL(post(&a, &wr), 0);
		expect(a.cq, 1, IBV_WC_SUCCESS);
		expect(b.cq, 5, IBV_WC_SUCCESS);
		CHECK(!strcmp(a.memory, b.memory));
		EQUAL(post_recv(&b, 6, 0, 1), 0);
		EQUAL(post(&a, &wr), 0);
		expect(a.cq, 1, IBV_WC_REM_INV_REQ_ERR);
		expect(b.cq, 6, IBV_WC_LOC_LEN_ERR);
		EQUAL(to_state(a.qp, IBV_QPS_RESET), 0);
		EQUAL(to_state(b.qp, IBV_QPS_RESET), 0);
		connect_to(&a, &b);
		connect_to(&b, &a);
	}
}

static void last_wqe_with_an_srq(void)
{
	struct side s = side_on(open_first());
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 16, .max_sge = 1 } };
	s.srq = ibv_create_srq(s.pd, &srq);
	make_qp(&s, IBV_QPT_RC);
	EQUAL(to_init(s.qp), 0);
	EQUAL(to_state(s.qp, IBV_QPS_ERR), 0);
	struct ibv_async_event event;
	EQUAL(ibv_get_async_event(s.context, &event), 0);
	EQUAL(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
	CHECK(event.element.qp == s.qp);
	ibv_ack_async_event(&event);
	EQUAL(s.qp->events_completed, 1);
	EQUAL(ibv_destroy_qp(s.qp), 0);
}

static void destruction_in_every_state(void)
{
	struct side a, b;
	struct ibv_context *context = open_first();
	uint32_t last = 0;
	for (int state = 0; state < 6; state++) {
		a = side_on(context);
		b = side_on(context);
		make_qp(&a, IBV_QPT_RC);
		make_qp(&b, IBV_QPT_RC);
		CHECK(a.qp->qp_num != last);
		last = a.qp->qp_num;
		if (state == 1)
			EQUAL(to_init(a.qp), 0);
		if (state >= 2) {
			connect_to(&b, &a);
			connect_to(&a, &b);
		}
		struct ibv_sge sge = part(&a, 0, 4096);
		struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
		if (state >= 3)
			EQUAL(post(&a, &wr), 0);
		if (state == 4)
			EQUAL(to_state(a.qp, IBV_QPS_SQD), 0);
		if (state == 5)
			EQUAL(to_state(a.qp, IBV_QPS_ERR), 0);
		EQUAL(ibv_destroy_qp(a.qp), 0);
		EQUAL(ibv_destroy_qp(b.qp), 0);
		EQUAL(ibv_destroy_cq(a.cq), 0);
		EQUAL(ibv_dereg_mr(a.mr), 0);
		EQUAL(ibv_dealloc_pd(a.pd), 0);
	}
}

static const struct test tests[] = {
	TEST(capability_above_the_limit),
	TEST(granted_is_what_query_says),
	TEST(types_that_are_lacking),
	TEST(srq_makes_receive_sizes_void),
	TEST(objects_in_use_are_busy),
	TEST(state_machine),
	TEST(posting_by_state),
	TEST(reset_drops_completions),
	TEST(full_queues),
	TEST(lists_at_odd_addresses),
	TEST(bad_request_in_a_list),
	TEST(inline_data),
	TEST(used_again_after_an_error),
	TEST(last_wqe_with_an_srq),
	TEST(destruction_in_every_state),
};
MAIN(tests)
