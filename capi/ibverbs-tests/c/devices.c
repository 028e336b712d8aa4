#include <dlfcn.h>
#include "harness.h"

static void list_ends_with_null(void)
{
	int n = -1;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list);
	CHECK(n > 0);
	CHECK(!list[n]);
	for (int i = 0; i < n; i++) {
		CHECK(list[i]);
		CHECK(strlen(ibv_get_device_name(list[i])) > 0);
		CHECK(ibv_get_device_guid(list[i]));
		EQUAL(ibv_get_device_index(list[i]) >= 0, true);
		EQUAL(list[i]->node_type, IBV_NODE_CA);
		EQUAL(list[i]->transport_type, IBV_TRANSPORT_IB);
		for (int k = 0; k < i; k++)
			CHECK(ibv_get_device_guid(list[i]) != ibv_get_device_guid(list[k]));
	}
	ibv_free_device_list(list);
	list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	ibv_free_device_list(list);
	ibv_free_device_list(NULL);
}

static void no_device_is_an_empty_list(void)
{
	setenv("IRONVERBS_INTERFACES", "nosuch0", 1);
	int n = -1;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list);
	EQUAL(n, 0);
	CHECK(!list[0]);
	ibv_free_device_list(list);
}

static void wrong_configuration_is_an_error(void)
{
	setenv("IRONVERBS_UDP_PORT", "banana", 1);
	int n = -1;
	errno = 0;
	CHECK(!ibv_get_device_list(&n));
	EQUAL(errno, EINVAL);
	EQUAL(n, 0);
	CHECK(!ibv_get_device_list(NULL));
}

static void strings_of_a_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_device *d = list[0];
	char path[512];
	CHECK(!strncmp(d->dev_name, "uverbs", 6));
	snprintf(path, sizeof path, "/sys/class/infiniband_verbs/%s", d->dev_name);
	CHECK(!strcmp(d->dev_path, path));
	snprintf(path, sizeof path, "/sys/class/infiniband/%s", d->name);
	CHECK(!strcmp(d->ibdev_path, path));
	CHECK(ibv_get_device_name(d) == d->name);
}

static long resident_kb(void)
{
	long pages = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%ld %ld", &pages, &resident) == 2);
	fclose(f);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void ten_thousand_lists(void)
{
	struct ibv_device **first = ibv_get_device_list(NULL), *device = first[0];
	ibv_free_device_list(first);
	long before = 0;
	for (int i = 0; i < 10000; i++) {
		struct ibv_device **list = ibv_get_device_list(NULL);
		CHECK(list && list[0] == device);
		ibv_free_device_list(list);
		if (i == 1000)
			before = resident_kb();
	}
	CHECK(resident_kb() - before < 1024);
}

static void device_outlives_its_list(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	char name[64];
	strcpy(name, ibv_get_device_name(list[0]));
	__be64 guid = ibv_get_device_guid(list[0]);
	ibv_free_device_list(list);
	CHECK(!strcmp(ibv_get_device_name(context->device), name));
	CHECK(ibv_get_device_guid(context->device) == guid);
	struct ibv_device_attr attr;
	EQUAL(ibv_query_device(context, &attr), 0);
	CHECK(attr.node_guid == guid);
	EQUAL(ibv_close_device(context), 0);
}

static void attributes(void)
{
	struct ibv_context *context = open_first();
	struct ibv_device_attr attr;
	memset(&attr, 0xff, sizeof attr);
	EQUAL(ibv_query_device(context, &attr), 0);
	CHECK(attr.max_qp > 0 && attr.max_qp_wr > 0 && attr.max_sge > 0 && attr.max_cqe > 0);
	EQUAL(attr.phys_port_cnt, 1);
	CHECK(strlen(attr.fw_ver) > 0 && strlen(attr.fw_ver) < 64);

	struct ibv_device_attr_ex ex;
	memset(&ex, 0xff, sizeof ex);
	EQUAL(ibv_query_device_ex(context, NULL, &ex), 0);
	EQUAL(memcmp(&ex.orig_attr, &attr, offsetof(struct ibv_device_attr, phys_port_cnt) + 1), 0);
	EQUAL(ex.comp_mask, 0);
	EQUAL(ex.phys_port_cnt_ex, 1);
	EQUAL(ex.odp_caps.general_caps, IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };
	EQUAL(ibv_query_device_ex(context, &input, &ex), EINVAL);

	EQUAL(context->num_comp_vectors > 0, true);
	CHECK(fcntl(context->async_fd, F_GETFD) >= 0);
	CHECK(fcntl(context->cmd_fd, F_GETFD) >= 0);
}

static void ports_and_tables(void)
{
	struct ibv_context *context = open_first();
	struct ibv_port_attr port;
	memset(&port, 0xff, sizeof port);
	EQUAL(ibv_query_port(context, 1, &port), 0);
	EQUAL(port.state, IBV_PORT_ACTIVE);
	EQUAL(port.link_layer, IBV_LINK_LAYER_ETHERNET);
	EQUAL(port.port_cap_flags2, 0);
	EQUAL(ibv_query_port(context, 0, &port), EINVAL);
	EQUAL(ibv_query_port(context, 2, &port), EINVAL);

	union ibv_gid gid, zero = { .raw = { 0 } };
	EQUAL(ibv_query_gid(context, 1, 0, &gid), 0);
	CHECK(memcmp(&gid, &zero, sizeof gid));
	/* Programs read the whole table: an empty entry is zeros, not an error. */
	EQUAL(ibv_query_gid(context, 1, port.gid_tbl_len - 1, &gid), 0);
	EQUAL(memcmp(&gid, &zero, sizeof gid), 0);
	EQUAL(ibv_query_gid(context, 1, port.gid_tbl_len, &gid), -1);
	EQUAL(ibv_query_gid(context, 1, -1, &gid), -1);
	EQUAL(ibv_query_gid(context, 2, 0, &gid), -1);

	struct ibv_gid_entry entry, table[256];
	EQUAL(ibv_query_gid_ex(context, 1, 0, &entry, 0), 0);
	EQUAL(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
	EQUAL(entry.port_num, 1);
	EQUAL(entry.gid_index, 0);
	CHECK(entry.ndev_ifindex > 0);
	EQUAL(ibv_query_gid_ex(context, 1, port.gid_tbl_len - 1, &entry, 0), ENODATA);
	EQUAL(ibv_query_gid_ex(context, 1, 0, &entry, 1), EOPNOTSUPP);
	ssize_t n = ibv_query_gid_table(context, table, 256, 0);
	CHECK(n >= 1);
	EQUAL(memcmp(&table[0].gid, (ibv_query_gid(context, 1, 0, &gid), &gid), sizeof gid), 0);
	EQUAL(ibv_query_gid_table(context, table, 0, 0), -EINVAL);

	__be16 pkey;
	EQUAL(ibv_query_pkey(context, 1, 0, &pkey), 0);
	EQUAL(ntohs(pkey), 0xffff);
	EQUAL(ibv_query_pkey(context, 1, 1, &pkey), -1);
	EQUAL(ibv_get_pkey_index(context, 1, htons(0xffff)), 0);
	EQUAL(ibv_get_pkey_index(context, 1, htons(0x8001)), -1);
}

static void operations_that_are_lacking(void)
{
	struct side s = side_on(open_first());
	make_qp(&s, IBV_QPT_UD);
	errno = 0;
	/* A peer of another kind offers what it has, and hears that nothing of it is used. */
	struct ibv_ece ece = { .vendor_id = 0x2c9, .options = 0x30000002 };
	EQUAL(ibv_set_ece(s.qp, &ece), 0);
	EQUAL(ibv_query_ece(s.qp, &ece), 0);
	EQUAL(ece.vendor_id | ece.options | ece.comp_mask, 0);
	EQUAL(ibv_query_qp_data_in_order(s.qp, IBV_WR_SEND, 0), 0);
	CHECK(!ibv_qp_to_qp_ex(s.qp));
}

/* Programs ask driver libraries whether a device is theirs. */
static void drivers_see_a_stranger(void)
{
	struct ibv_context *context = open_first();
	void *mlx5 = dlopen("libmlx5.so.1", RTLD_NOW), *efa = dlopen("libefa.so.1", RTLD_NOW);
	if (!mlx5 || !efa)
		fprintf(stderr, "%s (package ibverbs-providers)\n", dlerror());
	CHECK(mlx5 && efa);
	bool (*is_mlx5)(struct ibv_device *) = dlsym(mlx5, "mlx5dv_is_supported");
	int (*query_efa)(struct ibv_context *, void *, uint32_t) = dlsym(efa, "efadv_query_device");
	CHECK(is_mlx5 && query_efa);
	CHECK(!is_mlx5(context->device));
	char attr[256];
	EQUAL(query_efa(context, attr, sizeof attr), EOPNOTSUPP);
	EQUAL(ibv_close_device(context), 0);
}

static void fork_needs_nothing(void)
{
	EQUAL(ibv_fork_init(), 0);
	EQUAL(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	pid_t child = fork();
	if (!child) {
		/* The child neither hangs nor disturbs the parent. */
		struct ibv_wc wc;
		ibv_poll_cq(a.cq, 1, &wc);
		ibv_alloc_pd(a.context);
		ibv_destroy_qp(a.qp);
		_exit(0);
	}
	int status;
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
	EQUAL(post_recv(&b, 2, 0, 64), 0);
	strcpy(a.memory, "after the fork");
	struct ibv_sge sge = part(&a, 0, 64);
	struct ibv_send_wr wr = send_of(&sge, IBV_WR_SEND);
	EQUAL(post(&a, &wr), 0);
	expect(a.cq, 1, IBV_WC_SUCCESS);
	expect(b.cq, 2, IBV_WC_SUCCESS);
	CHECK(!strcmp(b.memory, "after the fork"));
}

/* A child that begins anew has a device of its own. */
static void fork_that_starts_over(void)
{
	struct side a, b;
	pair(&a, &b, IBV_QPT_RC);
	pid_t child = fork();
	if (child) {
		int status;
		EQUAL(waitpid(child, &status, 0), child);
		EQUAL(status, 0);
	} else {
		/* A device has no state of the process: the child opens its own by it. */
		struct ibv_context *own = ibv_open_device(a.context->device);
		CHECK(own && own->device == a.context->device);
		EQUAL(ibv_close_device(own), 0);
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;
		(void)ibv_query_qp(a.qp, &attr, 0, &init);
		pair(&a, &b, IBV_QPT_RC);
	}
	snprintf(a.memory, 64, "from %d", getpid());
	one_message(&a, &b);
	CHECK(!strcmp(a.memory, b.memory));
	if (!child)
		exit(0);
}

static void reading_sysfs_files(void)
{
	char dir[] = "/tmp/ironverbs-sysfs-XXXXXX", path[128], buf[8];
	CHECK(mkdtemp(dir));
	snprintf(path, sizeof path, "%s/value", dir);
	FILE *f = fopen(path, "w");
	fputs("0xffff\n", f);
	fclose(f);
	extern int ibv_read_sysfs_file(const char *, const char *, char *, size_t);
	extern const char *ibv_get_sysfs_path(void);
	memset(buf, 'x', sizeof buf);
	EQUAL(ibv_read_sysfs_file(dir, "value", buf, sizeof buf), 6);
	CHECK(!strcmp(buf, "0xffff"));
	memset(buf, 'x', sizeof buf);
	EQUAL(ibv_read_sysfs_file(dir, "value", buf, 4), 4);
	CHECK(!memcmp(buf, "0xffxxxx", 8));
	EQUAL(ibv_read_sysfs_file(dir, "nosuch", buf, sizeof buf), -1);
	unlink(path);
	rmdir(dir);
	CHECK(!strcmp(ibv_get_sysfs_path(), "/sys"));
}

static void names_and_rates(void)
{
	CHECK(!strcmp(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR), "transport retry counter exceeded"));
	CHECK(!strcmp(ibv_wc_status_str((enum ibv_wc_status)99), "unknown"));
	CHECK(!strcmp(ibv_wc_status_str((enum ibv_wc_status)-1), "unknown"));
	CHECK(!strcmp(ibv_event_type_str(IBV_EVENT_QP_LAST_WQE_REACHED), "last WQE reached"));
	CHECK(!strcmp(ibv_event_type_str(IBV_EVENT_WQ_FATAL), "WQ fatal"));
	CHECK(!strcmp(ibv_node_type_str(IBV_NODE_CA), "InfiniBand channel adapter"));
	CHECK(!strcmp(ibv_node_type_str(IBV_NODE_UNKNOWN), "unknown"));
	CHECK(!strcmp(ibv_port_state_str(IBV_PORT_ACTIVE), "active"));
	for (int rate = 2; rate <= IBV_RATE_1200_GBPS; rate++) {
		EQUAL(mbps_to_ibv_rate(ibv_rate_to_mbps(rate)), rate);
		if (ibv_rate_to_mult(rate) != -1)
			EQUAL(mult_to_ibv_rate(ibv_rate_to_mult(rate)), rate);
	}
	EQUAL(ibv_rate_to_mult(IBV_RATE_5_GBPS), 2);
	EQUAL(ibv_rate_to_mbps(IBV_RATE_5_GBPS), 5000);
	EQUAL(ibv_rate_to_mbps(IBV_RATE_MAX), -1);
	EQUAL(mbps_to_ibv_rate(1), IBV_RATE_MAX);
}

/* As a program does that looks for its device and becomes a daemon then, even twice. */
static void list_from_before_a_fork(void)
{
	int count, status;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count > 0);
	pid_t child = fork();
	if (!child) {
		pid_t grandchild = fork();
		if (!grandchild) {
			struct ibv_context *context = ibv_open_device(list[0]);
			CHECK(context && context->device == list[0]);
			struct ibv_device **again = ibv_get_device_list(NULL);
			CHECK(again && again[0] == list[0]);
			struct side s = side_on(context);
			make_qp(&s, IBV_QPT_RC);
			EQUAL(to_init(s.qp), 0);
			EQUAL(ibv_destroy_qp(s.qp), 0);
			exit(0);
		}
		EQUAL(waitpid(grandchild, &status, 0), grandchild);
		exit(status != 0);
	}
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
	ibv_free_device_list(list);
}

static const struct test tests[] = {
	TEST(list_ends_with_null),
	TEST(no_device_is_an_empty_list),
	TEST(wrong_configuration_is_an_error),
	TEST(strings_of_a_device),
	TEST(ten_thousand_lists),
	TEST(device_outlives_its_list),
	TEST(attributes),
	TEST(ports_and_tables),
	TEST(operations_that_are_lacking),
	TEST(drivers_see_a_stranger),
	TEST(fork_needs_nothing),
	TEST(fork_that_starts_over),
	TEST(list_from_before_a_fork),
	TEST(reading_sysfs_files),
	TEST(names_and_rates),
};
MAIN(tests)
