//! What each name is. Names and nodes are those of `libibumad.map`; a test compares what the linker
//! made of both with `exports.txt`.

use crate::stubs::forward;

forward! { "IBUMAD_1.0", missing_number:
    umad_addr_dump,
    umad_close_port,
    umad_debug,
    umad_done,
    umad_dump,
    umad_get_ca,
    umad_get_ca_portguids,
    umad_get_cas_names,
    umad_get_fd,
    umad_get_issm_path,
    umad_get_pkey,
    umad_get_port,
    umad_init,
    umad_open_port,
    umad_poll,
    umad_recv,
    umad_register,
    umad_register2,
    umad_register_oui,
    umad_release_ca,
    umad_release_port,
    umad_send,
    umad_set_addr,
    umad_set_addr_net,
    umad_set_grh,
    umad_set_pkey,
    umad_status,
    umad_unregister,
}

forward! { "IBUMAD_1.0", missing_zero:
    umad_attribute_str,
    umad_class_str,
    umad_common_mad_status_str,
    umad_get_mad,
    umad_get_mad_addr,
    umad_method_str,
    umad_sa_mad_status_str,
    umad_size,
}

forward! { "IBUMAD_1.1", missing_number:
    umad_free_ca_device_list,
}

forward! { "IBUMAD_1.1", missing_zero:
    umad_get_ca_device_list,
}

forward! { "IBUMAD_1.2", missing_number:
    umad_sort_ca_device_list,
}
