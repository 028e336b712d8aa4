/* Extended reliable connections: domains, their shared receive queues, queue pairs of either side. */
#include "harness.h"

static struct ibv_xrcd *domain(struct ibv_context *context, int fd, int oflags)
{
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = fd, .oflags = oflags };
	return ibv_open_xrcd(context, &init);
}

static struct ibv_srq *xrc_srq(struct side *s, struct ibv_xrcd *xrcd, struct ibv_cq *cq)
{
	struct ibv_srq_init_attr_ex init = { .srq_context = s, .attr = { .max_wr = 16, .max_sge = 2 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
			     IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC, .pd = s->pd, .xrcd = xrcd, .cq = cq };
	struct ibv_srq *srq = ibv_create_srq_ex(s->context, &init);
	CHECK(srq && srq->pd == s->pd && srq->srq_context == s);
	return srq;
}

static uint32_t number(struct ibv_srq *srq)
{
	uint32_t n = 0;
	EQUAL(ibv_get_srq_num(srq, &n), 0);
	CHECK(n && n < 1 << 24);
	return n;
}

static void receive(struct side *s, struct ibv_srq *srq, uint64_t id, size_t offset, uint32_t length)
{
	struct ibv_sge sge = part(s, offset, length);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	EQUAL(ibv_post_srq_recv(srq, &wr, &bad), 0);
}

static void modify(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
	EQUAL(ibv_modify_qp(qp, &attr, mask), 0);
}

/* A sender of a, with the operations of ibv_wr_*, and a receiver in a domain of b. */
static void xrc_pair(struct side *a, struct side *b, struct ibv_xrcd **xrcd)
{
	struct ibv_context *context = open_first();
	*a = side_on(context);
	*b = side_on(context);
	*xrcd = domain(context, -1, O_CREAT);
	CHECK(*xrcd && (*xrcd)->context == context);
	struct ibv_qp_init_attr plain = qp_init(a, IBV_QPT_XRC_SEND);
	struct ibv_qp_init_attr_ex init = { .qp_context = a, .send_cq = a->cq, .cap = plain.cap,
		.qp_type = IBV_QPT_XRC_SEND, .pd = a->pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ };
	a->qp = ibv_create_qp_ex(context, &init);
	CHECK(a->qp && a->qp->pd == a->pd);
	EQUAL(init.cap.max_recv_wr, 0);
	struct ibv_qp_init_attr_ex receiver = { .qp_context = b, .qp_type = IBV_QPT_XRC_RECV,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = *xrcd };
	b->qp = ibv_create_qp_ex(context, &receiver);
	CHECK(b->qp && !b->qp->pd && !b->qp->send_cq && !b->qp->recv_cq && b->qp->qp_context == b);
	EQUAL(b->qp->qp_type, IBV_QPT_XRC_RECV);
	for (int i = 0; i < 2; i++)
		EQUAL(to_init(i ? b->qp : a->qp), 0);
	modify(a->qp, rtr_attr(b), RTR_UC);
	modify(b->qp, rtr_attr(a), RTR_RC);
	modify(a->qp, rts_attr(), RTS_RC);
	modify(b->qp, rts_attr(), RTS_UC | IBV_QP_TIMEOUT);
	EQUAL(b->qp->state, IBV_QPS_RTS);
}

static void messages_to_shared_queues(void)
{
	struct side a, b;
	struct ibv_xrcd *xrcd;
	xrc_pair(&a, &b, &xrcd);
	struct ibv_cq *other = ibv_create_cq(b.context, 16, NULL, NULL, 0);
	struct ibv_srq *first = xrc_srq(&b, xrcd, b.cq), *second = xrc_srq(&b, xrcd, other);
	CHECK(number(first) != number(second));
	receive(&b, first, 1, 0, 64);
	receive(&b, second, 2, 1024, 64);
	strcpy(a.memory, "for the second");
	struct ibv_sge sge = part(&a, 0, 15);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	wr.qp_type.xrc.remote_srqn = number(second);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	struct ibv_wc wc = expect(other, 2, IBV_WC_SUCCESS);
	EQUAL(wc.byte_len, 15);
	EQUAL(wc.qp_num, b.qp->qp_num);
	EQUAL(strcmp(b.memory + 1024, "for the second"), 0);

	strcpy(a.memory, "for the first");
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(a.qp);
	CHECK(ex);
	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_xrc_srqn(ex, number(first));
	ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.memory, 14);
	ibv_wr_rdma_read(ex, b.mr->rkey, (uintptr_t)b.memory + 1024);
	ibv_wr_set_xrc_srqn(ex, number(second));
	ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.memory + 512, 15);
	EQUAL(ibv_wr_complete(ex), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	expect(b.cq, 1, IBV_WC_SUCCESS);
	EQUAL(strcmp(b.memory, "for the first"), 0);
	EQUAL(strcmp(a.memory + 512, "for the second"), 0);

	/* A queue of no number: the request is invalid, and the receiver's owner is told. */
	wr.qp_type.xrc.remote_srqn = number(first) + number(second) + 7;
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_REM_INV_REQ_ERR);
	struct ibv_async_event event;
	do {
		EQUAL(ibv_get_async_event(b.context, &event), 0);
		ibv_ack_async_event(&event);
	} while (event.event_type == IBV_EVENT_PORT_ACTIVE);
	EQUAL(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
	CHECK(event.element.qp == b.qp);
}

static void what_is_asked_wrongly(void)
{
	struct side s = side_on(open_first());
	struct ibv_device_attr limits;
	EQUAL(ibv_query_device(s.context, &limits), 0);
	CHECK(limits.device_cap_flags & IBV_DEVICE_XRC);
	errno = 0;
	CHECK(!ibv_open_xrcd(s.context, &(struct ibv_xrcd_init_attr){ 0 }) && errno == EINVAL);
	CHECK(!domain(s.context, -2, O_CREAT) && errno == EBADF);
	CHECK(!domain(s.context, -1, O_CREAT | O_TRUNC) && errno == EINVAL);
	struct ibv_xrcd *xrcd = domain(s.context, -1, O_CREAT);
	CHECK(xrcd);

	struct ibv_qp_init_attr plain = qp_init(&s, IBV_QPT_XRC_RECV);
	CHECK(!ibv_create_qp(s.pd, &plain) && errno == EINVAL);
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .pd = s.pd };
	CHECK(!ibv_create_qp_ex(s.context, &init) && errno == EINVAL);
	init.comp_mask = IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.xrcd = xrcd;
	init.send_ops_flags = IBV_QP_EX_WITH_SEND;
	CHECK(!ibv_create_qp_ex(s.context, &init) && errno == EOPNOTSUPP);
	init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
	s.qp = ibv_create_qp_ex(s.context, &init);
	CHECK(s.qp);
	EQUAL(to_init(s.qp), 0);
	EQUAL(post_recv(&s, 1, 0, 8), EINVAL);
	EQUAL(ibv_close_xrcd(xrcd), EBUSY);
	EQUAL(ibv_destroy_qp(s.qp), 0);

	struct ibv_srq_init_attr basic = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(s.pd, &basic);
	uint32_t n;
	EQUAL(ibv_get_srq_num(srq, &n), EOPNOTSUPP);
	struct ibv_srq_init_attr_ex ex = { .attr = basic.attr, .srq_type = IBV_SRQT_XRC, .pd = s.pd,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD };
	CHECK(!ibv_create_srq_ex(s.context, &ex) && errno == EINVAL);
	srq = xrc_srq(&s, xrcd, s.cq);
	EQUAL(ibv_get_srq_num(srq, NULL), EINVAL);
	EQUAL(ibv_destroy_cq(s.cq), EBUSY);
	EQUAL(ibv_close_xrcd(xrcd), EBUSY);
	EQUAL(ibv_destroy_srq(srq), 0);
	EQUAL(ibv_close_xrcd(xrcd), 0);
	EQUAL(ibv_close_xrcd(xrcd), ENOENT);
	EQUAL(ibv_destroy_cq(s.cq), 0);
}

static void opened_again(void)
{
	struct side a, b;
	struct ibv_xrcd *xrcd;
	xrc_pair(&a, &b, &xrcd);
	struct ibv_srq *srq = xrc_srq(&b, xrcd, b.cq);
	struct ibv_qp_open_attr attr = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
			IBV_QP_OPEN_ATTR_CONTEXT | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = b.qp->qp_num, .xrcd = xrcd, .qp_context = &attr, .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_qp *again = ibv_open_qp(b.context, &attr);
	CHECK(again && again != b.qp && again->qp_num == b.qp->qp_num && again->qp_context == &attr);
	EQUAL(again->state, IBV_QPS_RTS);
	errno = 0;
	attr.qp_num = a.qp->qp_num;
	CHECK(!ibv_open_qp(b.context, &attr) && errno == EINVAL);
	attr.qp_type = IBV_QPT_RC;
	CHECK(!ibv_open_qp(b.context, &attr) && errno == EINVAL);
	attr.comp_mask = IBV_QP_OPEN_ATTR_NUM;
	CHECK(!ibv_open_qp(b.context, &attr) && errno == EINVAL);

	EQUAL(ibv_destroy_qp(b.qp), 0);
	receive(&b, srq, 1, 0, 64);
	struct ibv_sge sge = part(&a, 0, 8);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	wr.qp_type.xrc.remote_srqn = number(srq);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	expect(b.cq, 1, IBV_WC_SUCCESS);

	/* Its events come to the handle that is left. */
	wr.qp_type.xrc.remote_srqn ^= 0x800000;
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_REM_INV_REQ_ERR);
	struct ibv_async_event event;
	do {
		EQUAL(ibv_get_async_event(b.context, &event), 0);
		ibv_ack_async_event(&event);
	} while (event.event_type == IBV_EVENT_PORT_ACTIVE);
	CHECK(event.element.qp == again);
	EQUAL(ibv_destroy_qp(again), 0);
	EQUAL(ibv_destroy_qp(again), ENOENT);
	EQUAL(ibv_destroy_srq(srq), 0);
	EQUAL(ibv_close_xrcd(xrcd), 0);
}

static void the_domain_of_a_file(void)
{
	struct ibv_context *context = open_first(), *other = open_first();
	FILE *file = tmpfile();
	CHECK(file);
	int fd = fileno(file);
	errno = 0;
	CHECK(!domain(context, fd, 0) && errno == EAGAIN);
	struct ibv_xrcd *first = domain(context, fd, O_CREAT | O_EXCL);
	CHECK(first);
	CHECK(!domain(other, fd, O_CREAT | O_EXCL) && errno == EINVAL);
	struct ibv_xrcd *second = domain(other, fd, 0);
	CHECK(second && second->context == other);
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = first,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	struct ibv_qp_open_attr attr = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD,
		.qp_num = qp->qp_num, .xrcd = second };
	struct ibv_qp *again = ibv_open_qp(other, &attr);
	CHECK(again && again->context == other);
	/* What is left ends with the context. */
	EQUAL(ibv_close_device(other), 0);
	EQUAL(ibv_destroy_qp(qp), 0);
	EQUAL(ibv_close_xrcd(first), 0);
	CHECK(!domain(context, fd, 0) && errno == EAGAIN);
}

static const struct test tests[] = {
	TEST(messages_to_shared_queues),
	TEST(what_is_asked_wrongly),
	TEST(opened_again),
	TEST(the_domain_of_a_file),
};
MAIN(tests)
