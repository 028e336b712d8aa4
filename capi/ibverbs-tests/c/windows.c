/* Memory windows: ibv_alloc_mw(3), ibv_bind_mw(3), and the work requests that bind and invalidate. */
#include "harness.h"

#define BY_WIRE(name) \
	static void name##_by_wire(void) { setenv("IRONVERBS_PATH", "wire", 1); name(); }

enum { REACH = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

static struct ibv_mr *windowed(struct side *s)
{
	struct ibv_mr *mr = ibv_reg_mr(s->pd, s->memory, MEMORY, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	CHECK(mr);
	return mr;
}

static struct ibv_send_wr bind_of(struct ibv_mw *mw, uint32_t rkey, struct ibv_mr *mr, size_t offset, size_t length)
{
	return (struct ibv_send_wr){ .wr_id = 7, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw = { .mw = mw, .rkey = rkey, .bind_info = { .mr = mr, .addr = (uintptr_t)mr->addr + offset,
			.length = length, .mw_access_flags = REACH } } };
}

/* The outcome of a WRITE of one byte by key. */
static int written(struct side *a, uint64_t addr, uint32_t rkey)
{
	struct ibv_sge sge = part(a, 0, 1);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_RDMA_WRITE);
	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = rkey;
	EQUAL(post(a, &wr), 0);
	return completion(a->cq).status;
}

/* With new numbers: what is left on its way of the old connection must not be taken for the new one's. */
static void connect_again(struct side *a, struct side *b)
{
	EQUAL(ibv_destroy_qp(a->qp), 0);
	EQUAL(ibv_destroy_qp(b->qp), 0);
	make_qp(a, IBV_QPT_RC);
	make_qp(b, IBV_QPT_RC);
	connect_to(a, b);
	connect_to(b, a);
}

static void type_1(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_device_attr attr;
	EQUAL(ibv_query_device(a.context, &attr), 0);
	CHECK(attr.max_mw > 0 && attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW);
	struct ibv_mr *mr = windowed(&b);
	struct ibv_mw *mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1);
	CHECK(mw && mw->context == b.context && mw->pd == b.pd && mw->type == IBV_MW_TYPE_1 && mw->rkey);
	uint64_t addr = (uintptr_t)b.memory;
	uint32_t first = mw->rkey;
	EQUAL(written(&a, addr, first), IBV_WC_REM_ACCESS_ERR);
	connect_again(&a, &b);
	struct ibv_mw_bind bind = { .wr_id = 5, .send_flags = IBV_SEND_SIGNALED,
		.bind_info = { mr, addr + 64, 64, IBV_ACCESS_REMOTE_WRITE } };
	EQUAL(ibv_bind_mw(b.qp, mw, &bind), 0);
	EQUAL(expect(b.cq, 5, IBV_WC_SUCCESS).opcode, IBV_WC_BIND_MW);
	CHECK(mw->rkey != first && mw->rkey != mr->rkey);
	uint32_t second = mw->rkey;
	a.memory[0] = 'x';
	EQUAL(written(&a, addr + 127, second), IBV_WC_SUCCESS);
	EQUAL(b.memory[127], 'x');
	/* Bound anew, the key is another, and the old one names nothing. */
	bind.bind_info.addr = addr + 256;
	EQUAL(ibv_bind_mw(b.qp, mw, &bind), 0);
	expect(b.cq, 5, IBV_WC_SUCCESS);
	EQUAL(written(&a, addr + 256, mw->rkey), IBV_WC_SUCCESS);
	EQUAL(written(&a, addr + 127, second), IBV_WC_REM_ACCESS_ERR);
	connect_again(&a, &b);
	EQUAL(written(&a, addr + 127, mw->rkey), IBV_WC_REM_ACCESS_ERR);
	connect_again(&a, &b);
	/* Any queue pair of the domain's may be the way. */
	struct side c = side_on(a.context);
	struct side d = b;
	make_qp(&c, IBV_QPT_RC);
	make_qp(&d, IBV_QPT_RC);
	connect_to(&c, &d);
	connect_to(&d, &c);
	EQUAL(written(&c, addr + 256, mw->rkey), IBV_WC_SUCCESS);
	/* What is bound holds its region; nothing ends that. */
	EQUAL(ibv_dereg_mr(mr), EBUSY);
	bind.bind_info = (struct ibv_mw_bind_info){ 0 };
	EQUAL(ibv_bind_mw(b.qp, mw, &bind), 0);
	expect(b.cq, 5, IBV_WC_SUCCESS);
	EQUAL(written(&a, addr + 256, mw->rkey), IBV_WC_REM_ACCESS_ERR);
	EQUAL(ibv_dereg_mr(mr), 0);
	EQUAL(ibv_dealloc_mw(mw), 0);
	EQUAL(ibv_dealloc_mw(mw), ENOENT);
}
BY_WIRE(type_1)

static void type_2(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_mr *mr = windowed(&b);
	struct ibv_mw *mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
	CHECK(mw && mw->type == IBV_MW_TYPE_2);
	uint64_t addr = (uintptr_t)b.memory;
	uint32_t key = mw->rkey;
	for (int i = 0; i < 300; i++) {
		key = ibv_inc_rkey(key);
		struct ibv_send_wr wr = bind_of(mw, key, mr, 4096, 4096);
		EQUAL(post(&b, &wr), 0);
		EQUAL(expect(b.cq, 7, IBV_WC_SUCCESS).opcode, IBV_WC_BIND_MW);
		EQUAL(written(&a, addr + 4096, key), IBV_WC_SUCCESS);
		/* By this side, by the peer. */
		if (i % 2) {
			wr = (struct ibv_send_wr){ .wr_id = 8, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED,
				.invalidate_rkey = key };
			EQUAL(post(&b, &wr), 0);
			EQUAL(expect(b.cq, 8, IBV_WC_SUCCESS).opcode, IBV_WC_LOCAL_INV);
		} else {
			EQUAL(post_recv(&b, 9, 0, 64), 0);
			wr = send_of(NULL, IBV_WR_SEND_WITH_INV);
			wr.invalidate_rkey = key;
			EQUAL(post(&a, &wr), 0);
			expect(a.cq, 1, IBV_WC_SUCCESS);
			struct ibv_wc wc = expect(b.cq, 9, IBV_WC_SUCCESS);
			EQUAL(wc.wc_flags, IBV_WC_WITH_INV);
			EQUAL(wc.invalidated_rkey, key);
		}
		if (i > 296) {
			EQUAL(written(&a, addr + 4096, key), IBV_WC_REM_ACCESS_ERR);
			connect_again(&a, &b);
		}
	}
	EQUAL(ibv_dereg_mr(mr), 0);
	EQUAL(ibv_dealloc_mw(mw), 0);
}
BY_WIRE(type_2)

static void freed_while_bound(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_mr *mr = windowed(&b);
	struct ibv_mw *mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
	uint32_t key = ibv_inc_rkey(mw->rkey);
	struct ibv_send_wr wr = bind_of(mw, key, mr, 0, MEMORY);
	wr.send_flags = 0;
	EQUAL(post(&b, &wr), 0);
	struct ibv_send_wr fence = send_of(NULL, IBV_WR_RDMA_WRITE);
	EQUAL(post(&b, &fence), 0);
	/* Unsignaled it completes unseen. */
	expect(b.cq, 1, IBV_WC_SUCCESS);
	EQUAL(written(&a, (uintptr_t)b.memory, key), IBV_WC_SUCCESS);
	EQUAL(ibv_dealloc_pd(b.pd), EBUSY);
	EQUAL(ibv_dealloc_mw(mw), 0);
	EQUAL(written(&a, (uintptr_t)b.memory, key), IBV_WC_REM_ACCESS_ERR);
	EQUAL(ibv_dereg_mr(mr), 0);
}
BY_WIRE(freed_while_bound)

static void asked_wrongly(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_mr *mr = windowed(&b);
	CHECK(!ibv_alloc_mw(b.pd, 0) && errno == EINVAL);
	CHECK(!ibv_alloc_mw(b.pd, 3) && errno == EINVAL);
	struct ibv_mw *one = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
	uint32_t before = one->rkey;
	struct ibv_mw_bind bind = { .bind_info = { mr, (uintptr_t)b.memory, 64, REACH } };
	EQUAL(ibv_bind_mw(b.qp, two, &bind), EINVAL);
	bind.bind_info.mw_access_flags = 1 << 15;
	EQUAL(ibv_bind_mw(b.qp, one, &bind), EINVAL);
	bind.bind_info.mw_access_flags = IBV_ACCESS_MW_BIND;
	EQUAL(ibv_bind_mw(b.qp, one, &bind), EINVAL);
	struct ibv_mr stale = *mr;
	bind.bind_info = (struct ibv_mw_bind_info){ &stale, (uintptr_t)b.memory, 64, REACH };
	EQUAL(ibv_bind_mw(b.qp, one, &bind), ENOENT);
	EQUAL(one->rkey, before);
	struct ibv_send_wr wr = bind_of(one, before, mr, 0, 64), *bad = NULL;
	EQUAL(ibv_post_send(b.qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
	wr = bind_of(two, two->rkey + 0x1000, mr, 0, 64);
	EQUAL(post(&b, &wr), EINVAL);
	wr = bind_of(two, two->rkey, mr, 0, 64);
	wr.bind_mw.bind_info.mr = NULL;
	EQUAL(post(&b, &wr), EINVAL);
	wr = bind_of(NULL, 0, mr, 0, 64);
	EQUAL(post(&b, &wr), EINVAL);
	/* None of it was posted; the queue pair works. */
	expect_none(b.cq);
	wr = bind_of(two, ibv_inc_rkey(two->rkey), mr, 0, 64);
	EQUAL(post(&b, &wr), 0);
	expect(b.cq, 7, IBV_WC_SUCCESS);
	/* What shows when its turn comes breaks it: here, that the window is bound already. */
	EQUAL(post(&b, &wr), 0);
	struct ibv_wc wc = expect(b.cq, 7, IBV_WC_MW_BIND_ERR);
	CHECK(wc.vendor_err);
	/* A datagram queue pair binds nothing. */
	struct side u = b;
	make_qp(&u, IBV_QPT_UD);
	ready_datagrams(u.qp);
	EQUAL(post(&u, &wr), EINVAL);
}

static void builders(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	struct ibv_mr *mr = windowed(&b);
	EQUAL(ibv_destroy_qp(b.qp), 0);
	struct ibv_qp_init_attr plain = qp_init(&b, IBV_QPT_RC);
	struct ibv_qp_init_attr_ex init = { .send_cq = b.cq, .recv_cq = b.cq, .cap = plain.cap, .qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = b.pd,
		.send_ops_flags = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND };
	b.qp = ibv_create_qp_ex(b.context, &init);
	CHECK(b.qp);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(b.qp);
	EQUAL(to_state(a.qp, IBV_QPS_RESET), 0);
	connect_to(&a, &b);
	connect_to(&b, &a);
	struct ibv_mw *mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
	uint32_t key = ibv_inc_rkey(mw->rkey);
	struct ibv_mw_bind_info info = { mr, (uintptr_t)b.memory, 64, IBV_ACCESS_REMOTE_WRITE };
	EQUAL(post_recv(&a, 3, 0, 64), 0);
	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_bind_mw(qp, mw, key, &info);
	qp->wr_id = 2;
	ibv_wr_send(qp);
	EQUAL(ibv_wr_complete(qp), 0);
	EQUAL(expect(b.cq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_BIND_MW);
	expect(b.cq, 2, IBV_WC_SUCCESS);
	expect(a.cq, 3, IBV_WC_SUCCESS);
	EQUAL(written(&a, (uintptr_t)b.memory, key), IBV_WC_SUCCESS);
	ibv_wr_start(qp);
	qp->wr_id = 4;
	ibv_wr_local_inv(qp, key);
	EQUAL(ibv_wr_complete(qp), 0);
	EQUAL(expect(b.cq, 4, IBV_WC_SUCCESS).opcode, IBV_WC_LOCAL_INV);
	EQUAL(written(&a, (uintptr_t)b.memory, key), IBV_WC_REM_ACCESS_ERR);
	/* What is refused posts nothing of its batch. */
	ibv_wr_start(qp);
	ibv_wr_bind_mw(qp, mw, key + 0x10000, &info);
	EQUAL(ibv_wr_complete(qp), EINVAL);
	ibv_wr_start(qp);
	ibv_wr_bind_mw(qp, mw, key, NULL);
	EQUAL(ibv_wr_complete(qp), EINVAL);
}

static const struct test tests[] = {
	TEST(type_1),
	TEST(type_1_by_wire),
	TEST(type_2),
	TEST(type_2_by_wire),
	TEST(freed_while_bound),
	TEST(freed_while_bound_by_wire),
	TEST(asked_wrongly),
	TEST(builders),
};
MAIN(tests)
