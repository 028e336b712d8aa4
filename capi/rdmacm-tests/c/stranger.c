/* Run with one library of ours and the distribution's other one. */
#include <errno.h>
#include <string.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "calls")) {
		struct rdma_cm_id *id;
		if (rdma_create_event_channel() || errno != ENOSYS)
			return 1;
		if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) != -1 || errno != ENOSYS)
			return 2;
		if (rdma_get_devices(NULL) || rdma_get_src_port(NULL))
			return 3;
		return 0;
	}
	/* Referred to, so that both libraries are loaded. */
	if (argc == 7)
		rdma_free_devices(rdma_get_devices(NULL));
	struct ibv_device **list = ibv_get_device_list(NULL);
	ibv_free_device_list(list);
	return !list;
}
