/*
 * What libibverbs.so.1 of ironverbs has beyond that of Linux: whether a GID can be reached, and
 * events when GIDs and multicast groups come and go. See ibv_gid_reachable(3) and
 * ibv_register_sm_events(3). And names for what the allocators of parent domains are asked for.
 */
#ifndef INFINIBAND_IRONVERBS_H
#define INFINIBAND_IRONVERBS_H

#include <stddef.h>
#include <sys/types.h>
#include <infiniband/verbs.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The resource types that allocators are called with, see ibv_alloc_parent_domain(3). */
enum ironverbs_resource_type {
	IRONVERBS_RES_SEND_QUEUE = 1,
	IRONVERBS_RES_RECV_QUEUE = 2,
	IRONVERBS_RES_SRQ = 3,
	IRONVERBS_RES_CQ = 4,
};

/* What a registration is for. */
typedef enum ibv_sm_event_type {
	IBV_SM_EVENT_MGID = 1 << 0,     /* the multicast groups given */
	IBV_SM_EVENT_UGID = 1 << 1,     /* the GIDs of ports given */
	IBV_SM_EVENT_MGID_ALL = 1 << 2, /* all multicast groups */
	IBV_SM_EVENT_UGID_ALL = 1 << 3, /* all GIDs of ports */
	IBV_SM_EVENT_ALL = IBV_SM_EVENT_MGID_ALL | IBV_SM_EVENT_UGID_ALL,
} ibv_sm_event_type_t;

/* Types of asynchronous events, clear of those of enum ibv_event_type. */
#define IBV_EVENT_GID_AVAIL ((enum ibv_event_type)0x10000)
#define IBV_EVENT_GID_UNAVAIL ((enum ibv_event_type)0x10001)
#define IBV_EVENT_MCG_CREATED ((enum ibv_event_type)0x10002)
#define IBV_EVENT_MCG_DELETED ((enum ibv_event_type)0x10003)

/*
 * The GID of such an event: valid until ibv_ack_async_event(). NULL for an event of another type.
 */
static inline const union ibv_gid *ibv_sm_event_gid(const struct ibv_async_event *event)
{
	const unsigned int type = (unsigned int)event->event_type;

	if (type < 0x10000 || type > 0x10003)
		return NULL;
	/* The union has a pointer to the GID in the place of the pointers to objects. */
	return (const union ibv_gid *)(const void *)event->element.cq;
}

/*
 * Whether gid_p can be reached from the port of the device, 0 for any. Waits for the answer at most
 * timeout milliseconds; 0 and less stand for two seconds.
 *
 * 0, or -1 with errno: EINVAL, ENXIO (there is no path), EIO (nobody could be asked), ENOMEM,
 * EINTR.
 */
int ibv_gid_reachable(struct ibv_context *context, uint port, union ibv_gid *gid_p, int timeout);

/*
 * Has events come as asynchronous events of the context. IBV_SM_EVENT_MGID and IBV_SM_EVENT_UGID
 * are for the gid_num GIDs given; with the others alone gid_num is 0 and gids NULL.
 *
 * 0, or -1 with errno.
 */
int ibv_register_sm_events(struct ibv_context *context, ibv_sm_event_type_t events, int gid_num,
			   union ibv_gid *gids);

/* Takes back a registration with the same arguments. */
int ibv_unregister_sm_events(struct ibv_context *context, ibv_sm_event_type_t events, int gid_num,
			     union ibv_gid *gids);

#ifdef __cplusplus
}
#endif

#endif
