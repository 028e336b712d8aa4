/* Built with the flags that pkg-config gives: our own header and a name that only our library has. */
#include <infiniband/ironverbs.h>
#include <rdma/rdma_cma.h>
#include <errno.h>
#include <stdio.h>

int main(void)
{
	union ibv_gid none = { .raw = { 0 } };
	errno = 0;
	if (ibv_gid_reachable(NULL, 1, &none, 1) != -1 || errno != EINVAL)
		return 1;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	if (!channel)
		return 2;
	rdma_destroy_event_channel(channel);
	puts("linked");
	return 0;
}
