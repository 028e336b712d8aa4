#include "harness.h"

static struct ibv_async_event next_event(struct ibv_context *context)
{
	struct ibv_async_event event;
	EQUAL(ibv_get_async_event(context, &event), 0);
	ibv_ack_async_event(&event);
	return event;
}

static void every_operation(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	for (int i = 0; i < 8192; i++)
		a.memory[i] = (char)(i * 7);
	struct ibv_sge sge = part(&a, 0, 8000);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);

	EQUAL(post_recv(&b, 10, 0, 8192), 0);
	EQUAL(post(&a, &wr), 0);
	struct ibv_wc wc = expect(a.cq, 1, IBV_WC_SUCCESS);
	EQUAL(wc.opcode, IBV_WC_SEND);
	EQUAL(wc.qp_num, a.qp->qp_num);
	wc = expect(b.cq, 10, IBV_WC_SUCCESS);
	EQUAL(wc.opcode, IBV_WC_RECV);
	EQUAL(wc.byte_len, 8000);
	EQUAL(wc.wc_flags, 0);
	EQUAL(wc.qp_num, b.qp->qp_num);
	EQUAL(memcmp(a.memory, b.memory, 8000), 0);

	/* Immediate data is bytes: out as in, whatever the sign. */
	wr = send_of(&sge, IBV_WR_SEND_WITH_IMM);
	memcpy(&wr.imm_data, "\xff\x80\x01\xfe", 4);
	EQUAL(post_recv(&b, 11, 0, 8192), 0);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	wc = expect(b.cq, 11, IBV_WC_SUCCESS);
	EQUAL(wc.wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
	EQUAL(memcmp(&wc.imm_data, "\xff\x80\x01\xfe", 4), 0);

	memset(b.memory, 0, 8192);
	wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	remote(&wr, &b, 100);
	EQUAL(post(&a, &wr), 0);
	EQUAL(expect(a.cq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_RDMA_WRITE);
	EQUAL(memcmp(a.memory, b.memory + 100, 8000), 0);
	EQUAL(b.memory[99], 0);
	EQUAL(b.memory[8100], 0);

	wr = send_of(&sge, IBV_WR_RDMA_WRITE_WITH_IMM);
	wr.imm_data = htonl(0x12345678);
	remote(&wr, &b, 0);
	EQUAL(post_recv(&b, 12, 500000, 16), 0);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	wc = expect(b.cq, 12, IBV_WC_SUCCESS);
	EQUAL(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	EQUAL(wc.byte_len, 8000);
	EQUAL(ntohl(wc.imm_data), 0x12345678);

	memset(a.memory, 0, 8192);
	wr = send_of(&sge, IBV_WR_RDMA_READ);
	remote(&wr, &b, 0);
	EQUAL(post(&a, &wr), 0);
	wc = expect(a.cq, 1, IBV_WC_SUCCESS);
	EQUAL(wc.opcode, IBV_WC_RDMA_READ);
	EQUAL(memcmp(a.memory, b.memory, 8000), 0);

	uint64_t *there = (uint64_t *)b.memory, *here = (uint64_t *)a.memory;
	*there = 41;
	sge = part(&a, 0, 8);
	wr = send_of(&sge, IBV_WR_ATOMIC_FETCH_AND_ADD);
	wr.wr.atomic.remote_addr = (uintptr_t)b.memory;
	wr.wr.atomic.rkey = b.mr->rkey;
	wr.wr.atomic.compare_add = 1;
	EQUAL(post(&a, &wr), 0);
	EQUAL(expect(a.cq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_FETCH_ADD);
	EQUAL(*here, 41);
	EQUAL(*there, 42);
	wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr.wr.atomic.compare_add = 42;
	wr.wr.atomic.swap = 7;
	EQUAL(post(&a, &wr), 0);
	EQUAL(expect(a.cq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_COMP_SWAP);
	EQUAL(*here, 42);
	EQUAL(*there, 7);
}

static void send_with_invalidate(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	/* Adapters invalidate windows (windows.c), and no region of a program. */
	struct ibv_sge sge = part(&a, 0, 16);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND_WITH_INV);
	wr.invalidate_rkey = b.mr->rkey;
	EQUAL(post_recv(&b, 5, 0, 64), 0);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_REM_ACCESS_ERR);
	expect(b.cq, 5, IBV_WC_LOC_ACCESS_ERR);
}

static void unsignaled_that_fails_completes(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_sge sge = part(&a, 0, 16);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	remote(&wr, &b, 0);
	wr.send_flags = 0;
	EQUAL(post(&a, &wr), 0);
	wr.wr_id = 2;
	wr.wr.rdma.rkey ^= 1;
	EQUAL(post(&a, &wr), 0);
	struct ibv_wc wc = expect(a.cq, 2, IBV_WC_REM_ACCESS_ERR);
	EQUAL(wc.opcode, IBV_WC_RDMA_WRITE);
	EQUAL(wc.qp_num, a.qp->qp_num);
	CHECK(wc.vendor_err);
	struct ibv_async_event event = next_event(b.context);
	EQUAL(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
	CHECK(event.element.qp == b.qp);
}

static void receive_too_small(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_sge sge = part(&a, 0, 100);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	EQUAL(post_recv(&b, 5, 0, 99), 0);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_REM_INV_REQ_ERR);
	expect(b.cq, 5, IBV_WC_LOC_LEN_ERR);
}

static void receive_with_a_bad_key(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_sge sge = part(&b, 0, 100);
	sge.lkey = b.mr->rkey;
	struct ibv_recv_wr recv = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 }, *bad;
	EQUAL(ibv_post_recv(b.qp, &recv, &bad), 0);
	sge = part(&a, 0, 100);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_REM_OP_ERR);
	expect(b.cq, 5, IBV_WC_LOC_PROT_ERR);
}

/* Key unknown, of another domain, range outside, right of the region, of the queue pair, misaligned, receive too small, its
 * memory; and what else a peer elsewhere says. */
enum { PEER_KEY = 24, PEER_PD, PEER_RANGE, PEER_REGION, PEER_QP, PEER_ALIGNMENT, PEER_TOO_SMALL = 32, PEER_MEMORY,
	NAK_INVALID = 10, NAK_ACCESS, NAK_OPERATIONAL };

static bool by_wire;

/* On one host a completion says what the responder found; on the wire, what its NAK says. */
static void expect_reason(struct side *s, enum ibv_wc_status status, uint32_t reason)
{
	uint32_t nak = status == IBV_WC_REM_INV_REQ_ERR ? NAK_INVALID : status == IBV_WC_REM_ACCESS_ERR ? NAK_ACCESS : NAK_OPERATIONAL;
	EQUAL(expect(s->cq, 1, status).vendor_err, by_wire ? nak : reason);
}

static void reasons_of_the_responder(void)
{
	struct side a, b;
	/* An atomic to an odd address, a READ that the queue pair does not allow, a receive that is too small, one with a bad key. */
	for (int what = 0; what < 4; what++) {
		pair(&a, &b, IBV_QPT_RC);
		struct ibv_sge sge = part(&a, 0, what < 1 ? 8 : 100);
		struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
		if (what == 0) {
			wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
			wr.wr.atomic.remote_addr = (uintptr_t)b.memory + 4;
			wr.wr.atomic.rkey = b.mr->rkey;
		} else if (what == 1) {
			struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
			EQUAL(ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS), 0);
			wr.opcode = IBV_WR_RDMA_READ;
			remote(&wr, &b, 0);
		} else if (what == 2) {
			EQUAL(post_recv(&b, 5, 0, 99), 0);
		} else {
			struct ibv_sge bad_key = part(&b, 0, 100);
			bad_key.lkey = b.mr->rkey;
			struct ibv_recv_wr recv = { .wr_id = 5, .sg_list = &bad_key, .num_sge = 1 }, *bad;
			EQUAL(ibv_post_recv(b.qp, &recv, &bad), 0);
		}
		EQUAL(post(&a, &wr), 0);
		static const uint32_t reasons[] = { PEER_ALIGNMENT, PEER_QP, PEER_TOO_SMALL, PEER_MEMORY };
		expect_reason(&a, what < 3 ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR, reasons[what]);
	}
}

static void reasons_of_the_responder_by_wire(void)
{
	setenv("IRONVERBS_PATH", "wire", 1);
	by_wire = true;
	reasons_of_the_responder();
}

static void remote_access_errors(void)
{
	static const uint32_t reasons[] = { PEER_KEY, PEER_KEY, PEER_PD, PEER_RANGE, PEER_REGION, PEER_KEY };
	for (int what = 0; what < 6; what++) {
		struct side a, b;
		pair(&a, &b, IBV_QPT_RC);
		struct ibv_pd *other = ibv_alloc_pd(b.context);
		struct ibv_mr *mr = NULL;
		struct ibv_sge sge = part(&a, 0, 64);
		struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
		memset(a.memory, 0x55, 64);
		memset(b.memory, 0, 8192);
		remote(&wr, &b, 0);
		switch (what) {
		case 0: wr.wr.rdma.rkey += 77 << 9; break;
		case 1:
			mr = ibv_reg_mr(b.pd, b.memory, 4096, ALL_ACCESS);
			wr.wr.rdma.rkey = mr->rkey;
			EQUAL(ibv_dereg_mr(mr), 0);
			break;
		case 2:
			mr = ibv_reg_mr(other, b.memory, 4096, ALL_ACCESS);
			wr.wr.rdma.rkey = mr->rkey;
			break;
		case 3:
			mr = ibv_reg_mr(b.pd, b.memory, 4096, ALL_ACCESS);
			wr.wr.rdma.rkey = mr->rkey;
			wr.wr.rdma.remote_addr += 4096 - 63;
			break;
		case 4:
			mr = ibv_reg_mr(b.pd, b.memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
			wr.wr.rdma.rkey = mr->rkey;
			break;
		case 5: wr.wr.rdma.rkey = b.mr->lkey; break;
		}
		EQUAL(post(&a, &wr), 0);
		expect_reason(&a, IBV_WC_REM_ACCESS_ERR, reasons[what]);
		for (int i = 0; i < 8192; i++)
			EQUAL(b.memory[i], 0);
		EQUAL(next_event(b.context).event_type, IBV_EVENT_QP_ACCESS_ERR);
	}
}

static void remote_access_errors_by_wire(void)
{
	setenv("IRONVERBS_PATH", "wire", 1);
	by_wire = true;
	remote_access_errors();
}

static void local_errors(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_sge sge = part(&a, 0, 64);
	sge.lkey = 0xdead00;
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_LOC_PROT_ERR);
	wr.wr_id = 2;
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 2, IBV_WC_WR_FLUSH_ERR);
}

static void rnr_retries_end(void)
{
	struct side a, b;
	struct ibv_context *context = open_first();
	a = side_on(context);
	b = side_on(context);
	make_qp(&a, IBV_QPT_RC);
	make_qp(&b, IBV_QPT_RC);
	connect_to(&b, &a);
	EQUAL(to_init(a.qp), 0);
	struct ibv_qp_attr attr = rtr_attr(&b);
	EQUAL(ibv_modify_qp(a.qp, &attr, RTR_RC), 0);
	attr = rts_attr();
	attr.rnr_retry = 1;
	EQUAL(ibv_modify_qp(a.qp, &attr, RTS_RC), 0);
	struct ibv_sge sge = part(&a, 0, 64);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
}

static void rnr_waits_for_ever(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_sge sge = part(&a, 0, 64);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	EQUAL(post(&a, &wr), 0);
	expect_none(a.cq);
	EQUAL(post_recv(&b, 2, 0, 64), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	expect(b.cq, 2, IBV_WC_SUCCESS);
}

static void peer_that_is_gone(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	EQUAL(ibv_destroy_qp(b.qp), 0);
	struct ibv_sge sge = part(&a, 0, 64);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_RETRY_EXC_ERR);
}

static void zero_length(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	enum ibv_wr_opcode codes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	for (int i = 0; i < 3; i++)
		for (int elements = 0; elements < 2; elements++) {
			struct ibv_sge sge = part(&a, 0, 0);
			struct ibv_send_wr wr = send_of(elements ? &sge : NULL, codes[i]);
			wr.wr.rdma.remote_addr = 0x1234;
			wr.wr.rdma.rkey = 0xabcdef;
			if (!i) {
				struct ibv_recv_wr recv = { .wr_id = 3 }, *bad;
				EQUAL(ibv_post_recv(b.qp, &recv, &bad), 0);
			}
			EQUAL(post(&a, &wr), 0);
			expect(a.cq, 1, IBV_WC_SUCCESS);
			if (!i)
				EQUAL(expect(b.cq, 3, IBV_WC_SUCCESS).byte_len, 0);
		}
}

static void overrun_raises_cq_err(void)
{
	struct side a = side_on(open_first());
	EQUAL(ibv_destroy_cq(a.cq), 0);
	a.cq = ibv_create_cq(a.context, 1, NULL, NULL, 0);
	CHECK(a.cq);
	make_qp(&a, IBV_QPT_RC);
	EQUAL(to_init(a.qp), 0);
	for (int i = 0; i < a.cq->cqe + 2 && i < 16; i++)
		EQUAL(post_recv(&a, i, 0, 8), 0);
	EQUAL(to_state(a.qp, IBV_QPS_ERR), 0);
	struct ibv_async_event event;
	EQUAL(ibv_get_async_event(a.context, &event), 0);
	EQUAL(event.event_type, IBV_EVENT_CQ_ERR);
	CHECK(event.element.cq == a.cq);
	ibv_ack_async_event(&event);
	EQUAL(a.cq->async_events_completed, 1);
}

static void resizing(void)
{
	struct side a = side_on(open_first());
	struct ibv_device_attr limits;
	EQUAL(ibv_query_device(a.context, &limits), 0);
	CHECK(!ibv_create_cq(a.context, 0, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(a.context, -1, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(a.context, limits.max_cqe + 1, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(a.context, 8, NULL, NULL, -1) && errno == EINVAL);
	CHECK(!ibv_create_cq(a.context, 8, NULL, NULL, a.context->num_comp_vectors) && errno == EINVAL);
	make_qp(&a, IBV_QPT_RC);
	EQUAL(to_init(a.qp), 0);
	for (int i = 0; i < 4; i++)
		EQUAL(post_recv(&a, i, 0, 8), 0);
	EQUAL(to_state(a.qp, IBV_QPS_ERR), 0);
	EQUAL(ibv_resize_cq(a.cq, 2), EINVAL);
	EQUAL(ibv_resize_cq(a.cq, 0), EINVAL);
	EQUAL(ibv_resize_cq(a.cq, limits.max_cqe + 1), EINVAL);
	EQUAL(ibv_resize_cq(a.cq, 500), 0);
	CHECK(a.cq->cqe >= 500);
	struct ibv_wc wc[8];
	EQUAL(ibv_poll_cq(a.cq, 0, wc), 0);
	CHECK(ibv_poll_cq(a.cq, -1, wc) < 0);
	EQUAL(ibv_poll_cq(a.cq, 3, wc), 3);
	EQUAL(wc[2].wr_id, 2);
	EQUAL(ibv_poll_cq(a.cq, 8, wc), 1);
	EQUAL(wc[0].wr_id, 3);
}

static void channel_events(void)
{
	struct side a, b;
	struct ibv_context *context = open_first();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	a = side_on(context);
	b = side_on(context);
	EQUAL(ibv_destroy_cq(b.cq), 0);
	b.cq = ibv_create_cq(context, 16, &b, channel, 0);
	make_qp(&a, IBV_QPT_RC);
	make_qp(&b, IBV_QPT_RC);
	connect_to(&a, &b);
	connect_to(&b, &a);

	struct ibv_cq *cq = NULL;
	void *cq_context = NULL;
	int flags = fcntl(channel->fd, F_GETFL);
	EQUAL(fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK), 0);
	errno = 0;
	EQUAL(ibv_get_cq_event(channel, &cq, &cq_context), -1);
	EQUAL(errno, EAGAIN);
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	EQUAL(poll(&p, 1, 0), 0);

	struct ibv_sge sge = part(&a, 0, 64);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	/* Only solicited ones. */
	EQUAL(ibv_req_notify_cq(b.cq, 1), 0);
	EQUAL(post_recv(&b, 1, 0, 64), 0);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	expect(b.cq, 1, IBV_WC_SUCCESS);
	EQUAL(poll(&p, 1, 50), 0);
	wr.send_flags |= IBV_SEND_SOLICITED;
	EQUAL(post_recv(&b, 2, 0, 64), 0);
	EQUAL(post(&a, &wr), 0);
	/* Nobody polls: the event comes all the same. */
	EQUAL(poll(&p, 1, 60000), 1);
	EQUAL(ibv_get_cq_event(channel, &cq, &cq_context), 0);
	CHECK(cq == b.cq && cq_context == &b);
	expect(b.cq, 2, IBV_WC_SUCCESS);
	expect(a.cq, 1, IBV_WC_SUCCESS);

	/* Blocking, and the second of two events. */
	EQUAL(fcntl(channel->fd, F_SETFL, flags), 0);
	wr.send_flags = IBV_SEND_SIGNALED;
	EQUAL(ibv_req_notify_cq(b.cq, 0), 0);
	EQUAL(post_recv(&b, 3, 0, 64), 0);
	EQUAL(post(&a, &wr), 0);
	EQUAL(ibv_get_cq_event(channel, &cq, &cq_context), 0);
	expect(b.cq, 3, IBV_WC_SUCCESS);

	EQUAL(ibv_destroy_qp(b.qp), 0);
	ibv_ack_cq_events(b.cq, 2);
	EQUAL(b.cq->comp_events_completed, 2);
	EQUAL(ibv_destroy_cq(b.cq), 0);
	EQUAL(ibv_destroy_comp_channel(channel), 0);
}

static volatile bool acknowledged;

static void *acknowledge_later(void *cq)
{
	pause_ms(100);
	acknowledged = true;
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void destroying_waits_for_acknowledgement(void)
{
	struct ibv_context *context = open_first();
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct side a = side_on(context);
	EQUAL(ibv_destroy_cq(a.cq), 0);
	a.cq = ibv_create_cq(context, 16, NULL, channel, 0);
	make_qp(&a, IBV_QPT_RC);
	EQUAL(to_init(a.qp), 0);
	EQUAL(ibv_req_notify_cq(a.cq, 0), 0);
	EQUAL(post_recv(&a, 1, 0, 8), 0);
	EQUAL(to_state(a.qp, IBV_QPS_ERR), 0);
	struct ibv_cq *cq;
	void *cq_context;
	EQUAL(ibv_get_cq_event(channel, &cq, &cq_context), 0);
	EQUAL(ibv_destroy_qp(a.qp), 0);
	pthread_t thread;
	EQUAL(pthread_create(&thread, NULL, acknowledge_later, cq), 0);
	EQUAL(ibv_destroy_cq(cq), 0);
	CHECK(acknowledged);
	pthread_join(thread, NULL);
}

static void asynchronous_fd(void)
{
	struct side a = side_on(open_first());
	struct ibv_async_event event;
	int flags = fcntl(a.context->async_fd, F_GETFL);
	EQUAL(fcntl(a.context->async_fd, F_SETFL, flags | O_NONBLOCK), 0);
	errno = 0;
	EQUAL(ibv_get_async_event(a.context, &event), -1);
	EQUAL(errno, EAGAIN);
	struct pollfd p = { .fd = a.context->async_fd, .events = POLLIN };
	EQUAL(poll(&p, 1, 0), 0);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	a.srq = ibv_create_srq(a.pd, &srq);
	make_qp(&a, IBV_QPT_RC);
	EQUAL(to_init(a.qp), 0);
	EQUAL(to_state(a.qp, IBV_QPS_ERR), 0);
	EQUAL(poll(&p, 1, 60000), 1);
	EQUAL(ibv_get_async_event(a.context, &event), 0);
	ibv_ack_async_event(&event);
}

static void draining_raises_an_event(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_sge sge = part(&a, 0, 64);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	remote(&wr, &b, 0);
	EQUAL(post(&a, &wr), 0);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	EQUAL(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	struct ibv_async_event event = next_event(a.context);
	EQUAL(event.event_type, IBV_EVENT_SQ_DRAINED);
	CHECK(event.element.qp == a.qp);
	/* What is posted now waits until the queue pair is ready again. */
	wr.wr_id = 2;
	EQUAL(post(&a, &wr), 0);
	expect_none(a.cq);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS };
	EQUAL(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
	expect(a.cq, 2, IBV_WC_SUCCESS);
}

static void first_message_in_rtr(void)
{
	struct ibv_context *context = open_first();
	struct side a = side_on(context), b = side_on(context);
	make_qp(&a, IBV_QPT_RC);
	make_qp(&b, IBV_QPT_RC);
	EQUAL(to_init(b.qp), 0);
	EQUAL(post_recv(&b, 5, 0, 64), 0);
	struct ibv_qp_attr attr = rtr_attr(&a);
	EQUAL(ibv_modify_qp(b.qp, &attr, RTR_RC), 0);
	connect_to(&a, &b);
	struct ibv_sge sge = part(&a, 0, 64);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	expect(b.cq, 5, IBV_WC_SUCCESS);
	struct ibv_async_event event = next_event(context);
	EQUAL(event.event_type, IBV_EVENT_COMM_EST);
	CHECK(event.element.qp == b.qp);
}

static void fence_and_chains(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	/* A READ, then under a fence a SEND of what it brings. */
	strcpy(b.memory + 4096, "read first");
	struct ibv_sge first = part(&a, 0, 16);
	struct ibv_send_wr read = send_of(&first, IBV_WR_RDMA_READ), send = send_of(&first, IBV_WR_SEND);
	remote(&read, &b, 4096);
	read.next = &send;
	send.wr_id = 2;
	send.send_flags |= IBV_SEND_FENCE;
	EQUAL(post_recv(&b, 3, 0, 64), 0);
	EQUAL(post(&a, &read), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	expect(a.cq, 2, IBV_WC_SUCCESS);
	expect(b.cq, 3, IBV_WC_SUCCESS);
	CHECK(!strcmp(b.memory, "read first"));
}

static void unreliable_connection(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_UC);
	strcpy(a.memory, "unreliable");
	struct ibv_sge sge = part(&a, 0, 5000);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	EQUAL(post_recv(&b, 2, 0, 8192), 0);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	EQUAL(expect(b.cq, 2, IBV_WC_SUCCESS).byte_len, 5000);
	CHECK(!strcmp(b.memory, "unreliable"));
	wr.opcode = IBV_WR_RDMA_READ;
	EQUAL(post(&a, &wr), EINVAL);
}

static const struct test tests[] = {
	TEST(every_operation),
	TEST(send_with_invalidate),
	TEST(unsignaled_that_fails_completes),
	TEST(receive_too_small),
	TEST(receive_with_a_bad_key),
	TEST(reasons_of_the_responder),
	TEST(reasons_of_the_responder_by_wire),
	TEST(remote_access_errors),
	TEST(remote_access_errors_by_wire),
	TEST(local_errors),
	TEST(rnr_retries_end),
	TEST(rnr_waits_for_ever),
	TEST(peer_that_is_gone),
	TEST(zero_length),
	TEST(overrun_raises_cq_err),
	TEST(resizing),
	TEST(channel_events),
	TEST(destroying_waits_for_acknowledgement),
	TEST(asynchronous_fd),
	TEST(draining_raises_an_event),
	TEST(first_message_in_rtr),
	TEST(fence_and_chains),
	TEST(unreliable_connection),
};
MAIN(tests)
