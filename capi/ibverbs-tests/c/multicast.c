/* Multicast groups of UD queue pairs. */
#include "harness.h"

static union ibv_gid group(uint8_t last)
{
	return (union ibv_gid){ .raw = { [10] = 0xff, [11] = 0xff, [12] = 239, 9, 9, last } };
}

static void member(struct side *s)
{
	make_qp(s, IBV_QPT_UD);
	ready_datagrams(s->qp);
	for (int i = 0; i < 4; i++)
		EQUAL(post_recv(s, i, i * 128, 128), 0);
}

static void send_to(struct side *s, union ibv_gid gid, const char *text)
{
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } };
	struct ibv_ah *ah = ibv_create_ah(s->pd, &to);
	CHECK(ah);
	strcpy(s->memory + 8192, text);
	struct ibv_sge sge = part(s, 8192, strlen(text) + 1);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	wr.wr_id = 77;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = 0xffffff;
	wr.wr.ud.remote_qkey = 0x1234;
	EQUAL(post(s, &wr), 0);
	EQUAL(ibv_destroy_ah(ah), 0);
}

static void members_hear_and_others_do_not(void)
{
	struct side a = side_on(open_first()), b = side_on(open_first()), c = side_on(open_first());
	member(&a);
	member(&b);
	member(&c);
	union ibv_gid gid = group(1), other = group(2);
	EQUAL(ibv_attach_mcast(b.qp, &gid, 0), 0);
	EQUAL(ibv_attach_mcast(b.qp, &gid, 0xc000), 0);
	EQUAL(ibv_attach_mcast(c.qp, &other, 0), 0);
	send_to(&a, gid, "members");
	expect(a.cq, 77, IBV_WC_SUCCESS);
	struct ibv_wc wc = expect(b.cq, 0, IBV_WC_SUCCESS);
	EQUAL(wc.byte_len, 48);
	EQUAL(wc.src_qp, a.qp->qp_num);
	EQUAL(wc.wc_flags, IBV_WC_GRH);
	EQUAL(strcmp(b.memory + 40, "members"), 0);
	expect_none(b.cq);
	expect_none(c.cq);

	/* The header tells who sent: an answer goes back to it alone. */
	struct ibv_ah *ah = ibv_create_ah_from_wc(b.pd, &wc, (struct ibv_grh *)b.memory, 1);
	CHECK(ah);
	struct ibv_sge sge = part(&b, 40, 8);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = wc.src_qp;
	wr.wr.ud.remote_qkey = 0x1234;
	EQUAL(post(&b, &wr), 0);
	expect(b.cq, 1, IBV_WC_SUCCESS);
	expect(a.cq, 0, IBV_WC_SUCCESS);

	EQUAL(ibv_destroy_qp(b.qp), EBUSY);
	EQUAL(ibv_detach_mcast(b.qp, &gid, 0), 0);
	EQUAL(ibv_detach_mcast(b.qp, &gid, 0), EINVAL);
	send_to(&a, gid, "nobody");
	expect(a.cq, 77, IBV_WC_SUCCESS);
	expect_none(b.cq);
	EQUAL(ibv_destroy_qp(b.qp), 0);
	/* What is still attached goes with the context. */
	EQUAL(ibv_close_device(c.context), 0);
}

static void a_sender_may_be_deaf_to_itself(void)
{
	struct side a = side_on(open_first()), b = side_on(open_first());
	struct ibv_qp_init_attr plain = qp_init(&a, IBV_QPT_UD);
	struct ibv_qp_init_attr_ex init = { .send_cq = a.cq, .recv_cq = a.cq, .cap = plain.cap,
		.qp_type = IBV_QPT_RC, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.pd = a.pd, .create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB };
	errno = 0;
	CHECK(!ibv_create_qp_ex(a.context, &init) && errno == EOPNOTSUPP);
	init.qp_type = IBV_QPT_UD;
	a.qp = ibv_create_qp_ex(a.context, &init);
	CHECK(a.qp);
	ready_datagrams(a.qp);
	for (int i = 0; i < 4; i++)
		EQUAL(post_recv(&a, i, i * 128, 128), 0);
	member(&b);
	union ibv_gid gid = group(3);
	EQUAL(ibv_attach_mcast(a.qp, &gid, 0), 0);
	EQUAL(ibv_attach_mcast(b.qp, &gid, 0), 0);
	/* Others hear it, and it hears others; one that was not made so hears itself, too. */
	send_to(&a, gid, "from a");
	expect(a.cq, 77, IBV_WC_SUCCESS);
	EQUAL(expect(b.cq, 0, IBV_WC_SUCCESS).src_qp, a.qp->qp_num);
	send_to(&b, gid, "from b");
	EQUAL(expect(a.cq, 0, IBV_WC_SUCCESS).src_qp, b.qp->qp_num);
	struct ibv_wc wc = completion(b.cq), other = completion(b.cq);
	EQUAL(wc.wr_id + other.wr_id, 77 + 1);
	expect_none(a.cq);
}

static void wrong_addresses_and_limits(void)
{
	struct side s = side_on(open_first());
	struct ibv_device_attr limits;
	EQUAL(ibv_query_device(s.context, &limits), 0);
	CHECK(limits.max_mcast_grp > 0 && limits.max_mcast_qp_attach > 0);
	CHECK(limits.max_total_mcast_qp_attach >= limits.max_mcast_qp_attach);
	make_qp(&s, IBV_QPT_UD);
	EQUAL(ibv_attach_mcast(s.qp, &s.gid, 0), EINVAL);
	EQUAL(ibv_detach_mcast(s.qp, &s.gid, 0), EINVAL);
	EQUAL(ibv_attach_mcast(s.qp, NULL, 0), EINVAL);
	for (int i = 0; i < limits.max_mcast_grp; i++) {
		union ibv_gid gid = group(i);
		EQUAL(ibv_attach_mcast(s.qp, &gid, 0), 0);
	}
	union ibv_gid gid = group(limits.max_mcast_grp);
	EQUAL(ibv_attach_mcast(s.qp, &gid, 0), ENOMEM);
	struct side rc = side_on(s.context);
	make_qp(&rc, IBV_QPT_RC);
	gid = group(0);
	EQUAL(ibv_attach_mcast(rc.qp, &gid, 0), EINVAL);
}

static const struct test tests[] = {
	TEST(members_hear_and_others_do_not),
	TEST(a_sender_may_be_deaf_to_itself),
	TEST(wrong_addresses_and_limits),
};
MAIN(tests)
