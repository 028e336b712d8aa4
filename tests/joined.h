/*
 * Queue pairs of one process that are connected by rdma_cm: those of iWARP are in no other way.
 */
#include <netdb.h>
#include <rdma/rdma_cma.h>

struct joined {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *listener, *id[2];
};

static struct rdma_addrinfo *joined_place;

static int joined_at(const char *address)
{
    struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP};
    return rdma_getaddrinfo(address, "7180", &hints, &joined_place);
}

/* The next event must be that one; of a request, its id. */
static struct rdma_cm_id *joined_event(struct joined *j, enum rdma_cm_event_type wanted)
{
    struct rdma_cm_event *event;
    struct rdma_cm_id *id = NULL;
    if (rdma_get_cm_event(j->channel, &event)) return NULL;
    if (event->event == wanted) id = event->id;
    else printf("%s, status %d, instead of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(wanted));
    rdma_ack_cm_event(event);
    return id;
}

/* The id of a device, and with it the context, that has the address. */
static struct ibv_context *joined_context(void)
{
    static struct rdma_cm_id *id;
    struct sockaddr_storage any_port;
    memcpy(&any_port, joined_place->ai_src_addr, joined_place->ai_src_len);
    /* In the same place for IPv4 and IPv6. */
    ((struct sockaddr_in *)&any_port)->sin_port = 0;
    if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) || rdma_bind_addr(id, (struct sockaddr *)&any_port)) return NULL;
    return id->verbs;
}

/* Ids with queue pairs by these attributes that are connected; 0 if something did not work. */
static int join(struct joined *j, struct ibv_pd *pd, struct ibv_qp_init_attr attr[2])
{
    struct rdma_conn_param param = {.responder_resources = 4, .initiator_depth = 4};
    struct sockaddr *place = joined_place->ai_src_addr;
    if (!(j->channel = rdma_create_event_channel())) return 0;
    if (rdma_create_id(j->channel, &j->listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(j->listener, place)) return 0;
    if (rdma_listen(j->listener, 1) || rdma_create_id(j->channel, &j->id[0], NULL, RDMA_PS_TCP)) return 0;
    if (rdma_resolve_addr(j->id[0], NULL, place, 5000) || !joined_event(j, RDMA_CM_EVENT_ADDR_RESOLVED)) return 0;
    if (rdma_resolve_route(j->id[0], 5000) || !joined_event(j, RDMA_CM_EVENT_ROUTE_RESOLVED)) return 0;
    if (rdma_create_qp(j->id[0], pd, &attr[0]) || rdma_connect(j->id[0], &param)) return 0;
    if (!(j->id[1] = joined_event(j, RDMA_CM_EVENT_CONNECT_REQUEST))) return 0;
    if (rdma_create_qp(j->id[1], pd, &attr[1]) || rdma_accept(j->id[1], &param)) return 0;
    /* Who hears of it first is not said. */
    return joined_event(j, RDMA_CM_EVENT_ESTABLISHED) && joined_event(j, RDMA_CM_EVENT_ESTABLISHED);
}

static int part(struct joined *j)
{
    int wrong = 0;
    for (int i = 0; i < 2; i++) {
        rdma_destroy_qp(j->id[i]);
        wrong |= rdma_destroy_id(j->id[i]);
    }
    wrong |= rdma_destroy_id(j->listener);
    rdma_destroy_event_channel(j->channel);
    return wrong;
}
