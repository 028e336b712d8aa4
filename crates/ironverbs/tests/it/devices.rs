//! Devices, contexts, ports and their events.

use std::time::Duration;

use ironverbs::{Config, Cq, Devices, Error, Pd};

use crate::support::{context, devices};

#[test]
fn a_device_has_an_identity() {
    let list = devices().list().unwrap();
    let again = devices().list().unwrap();
    assert!(!list.is_empty());
    for (device, same) in list.iter().zip(&again) {
        assert_ne!(device.guid(), 0);
        assert_eq!((device.name(), device.guid()), (same.name(), same.guid()));
        assert!(device.is_present() && !device.interface().is_empty());
        assert_eq!(device.to_string(), device.name());
    }
    let mut guids: Vec<_> = list.iter().map(|device| device.guid()).collect();
    guids.sort_unstable();
    guids.dedup();
    assert_eq!(guids.len(), list.len());
}

#[test]
fn a_device_is_found_by_name_and_by_address() {
    let first = devices().first().unwrap();
    assert_eq!(devices().named(first.name()).unwrap().guid(), first.guid());
    let gid = first.open().unwrap().gid(0).unwrap();
    assert_eq!(devices().with_address(gid.to_ip()).unwrap().guid(), first.guid());
    let error = devices().named("mlx9_7").unwrap_err();
    let Error::NoDevice { name, present } = &error else { panic!("{error}") };
    assert_eq!((name.as_str(), present.contains(&first.name().to_owned())), ("mlx9_7", true));
}

#[test]
fn without_interfaces_there_are_no_devices() {
    let mut config = Config::default();
    config.interfaces.value = vec!["no-such-interface".into()];
    let devices = Devices::with(config).unwrap();
    assert!(devices.list().unwrap().is_empty());
    assert_eq!(devices.first().unwrap_err().to_string(), "no device at all; there are: none");
}

#[test]
fn a_context_outlives_the_list_it_was_opened_from() {
    let context = {
        let devices = Devices::with(Config::default()).unwrap();
        devices.first().unwrap().open().unwrap()
    };
    assert!(context.attr().max_qp > 0 && !context.device().name().is_empty());
    let pd = Pd::new(&context).unwrap();
    drop(context);
    assert!(pd.context().gids().iter().any(|entry| entry.index == 0));
}

#[test]
fn ports_count_from_one() {
    let context = context();
    context.port(1).unwrap();
    assert!(context.port(0).unwrap_err().to_string().contains("ports count from 1"));
    assert_eq!(context.port(2).unwrap_err().to_string(), "port is 2, at most 1 is possible");
    assert!(context.gid(1_000_000).is_err());
}

#[test]
fn a_completion_queue_is_as_large_as_asked_or_refused() {
    let context = context();
    assert!(Cq::new(&context, 1_000).unwrap().cqe() >= 1_000);
    let max = context.attr().max_cqe;
    let error = Cq::new(&context, max + 1).unwrap_err();
    assert_eq!(error.to_string(), format!("cqe is {}, at most {max} is possible", max + 1));
    assert!(Cq::new(&context, 0).is_err());
}

#[test]
fn waiting_for_an_event_ends_in_time() {
    assert_eq!(context().next_event().wait_for(Duration::from_millis(20)), None);
}
