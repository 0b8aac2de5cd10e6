//! Messages byte by byte, with the numbers of vfio-user.rst and `<linux/vfio.h>` written out again, and QEMU's own first message
//! (hw/vfio-user/proxy.c, caps_json).

use std::sync::Arc;

use nicety_vfio_user::codec::version::{Capabilities, Version};
use nicety_vfio_user::{Area, Mapping, RegionInfo};

use crate::kit::{DeviceCall, Raw, Reply, event, memfd, message, take, words};

const EINVAL: u32 = 22;

/// QEMU's first message: qobject_to_json prints keys in the order of QDict's hash.
const QEMU_JSON: &str = "{\"capabilities\": {\"max_msg_fds\": 16, \"migration\": {\"max_bitmap_size\": 268435456, \
    \"pgsize\": 4096}, \"max_dma_maps\": 65535, \"max_data_xfer_size\": 1048576, \"pgsizes\": 4096, \
    \"write_multiple\": true}}";

pub fn qemu_version() -> Vec<u8> {
    [&[0, 0, 0, 0], QEMU_JSON.as_bytes(), &[0]].concat()
}

#[test]
fn the_answer_to_qemus_version_fits_its_buffer_and_names_only_what_qemu_named() {
    let mut raw = Raw::fresh();
    let request = message(0, 1, 0, &qemu_version());
    raw.send(&request, &[]);
    raw.turn().unwrap();
    let replies = raw.replies();
    let [reply] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!((reply.id, reply.command, reply.flags, reply.error), (0, 1, 1, 0));
    assert!(16 + reply.payload.len() <= request.len(), "QEMU reads the reply into its request's buffer");
    assert_eq!(&reply.payload[..4], &[0, 0, 0, 0], "version 0.0, as proposed");
    let json = std::str::from_utf8(&reply.payload[4..]).unwrap();
    let expected = "{\"capabilities\":{\"max_data_xfer_size\":1048576,\"max_dma_maps\":65535,\"max_msg_fds\":16,\
        \"pgsizes\":4096,\"write_multiple\":true}}\0";
    assert_eq!(json, expected);
}

#[test]
fn a_version_without_capabilities_gets_the_lower_minor_and_the_two_limits() {
    for (minor, answered) in [(0u8, 0u8), (1, 1), (9, 1)] {
        let mut raw = Raw::fresh();
        raw.send(&message(7, 1, 0, &[0, 0, minor, 0]), &[]);
        raw.turn().unwrap();
        let reply = &raw.replies()[0];
        assert_eq!((reply.id, reply.payload[2]), (7, answered));
        let json = &reply.payload[4..];
        assert_eq!(json, b"{\"capabilities\":{\"max_data_xfer_size\":1048576,\"max_msg_fds\":16}}\0");
    }
}

#[test]
fn capabilities_that_are_not_what_they_should_be_are_malformed() {
    let good = Version::decode(&[&[0, 0, 1, 0], &b"{\"capabilities\":{\"max_msg_fds\":2,\"new\":[1]}}\0"[..]].concat());
    assert_eq!(good.unwrap().capabilities, Capabilities { max_msg_fds: Some(2), ..Capabilities::default() });
    let bad: [&[u8]; 18] = [
        b"{\0",
        b"[]\0",
        b"{}",
        b"{\"capabilities\":3}\0",
        b"{\"capabilities\":{\"max_msg_fds\":-1}}\0",
        b"{\"capabilities\":{\"max_msg_fds\":\"1\"}}\0",
        b"{\"capabilities\":{\"write_multiple\":1}}\0",
        b"{\"capabilities\":{\"max_msg_fds\":1025}}\0",
        b"{\"capabilities\":{\"max_msg_fds\":1e3}}\0",
        b"{\"capabilities\":{\"pgsizes\":0}}\0",
        b"{\"capabilities\":{\"migration\":7}}\0",
        b"{\"capabilities\":{\"migration\":{\"pgsize\":\"4096\"}}}\0",
        b"{\"capabilities\":{\"migration\":{\"pgsize\":0}}}\0",
        b"{\"capabilities\":{\"migration\":{\"pgsize\":4095}}}\0",
        b"{\"capabilities\":{\"twin_socket\":true}}\0",
        b"{\"capabilities\":{\"twin_socket\":{\"supported\":1}}}\0",
        b"\xff\0",
        &[b'['; 3000],
    ];
    for json in bad {
        assert!(Version::decode(&[&[0, 0, 1, 0], json].concat()).is_err(), "{json:?}");
    }
    assert!(Version::decode(&[0, 0, 1]).is_err());
    let twin = b"{\"capabilities\":{\"twin_socket\":{\"supported\":true},\"migration\":{},\"max_msg_fds\":1024}}\0";
    assert!(Version::decode(&[&[0, 0, 1, 0], &twin[..]].concat()).is_ok());
}

#[test]
fn a_region_read_and_its_answer_are_these_bytes() {
    let mut raw = Raw::ready();
    raw.model.bytes[0x20..0x24].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
    #[rustfmt::skip]
    let request = [
        0x34, 0x12, 9, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // id 0x1234, command 9, size 32, a command
        0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, // offset 0x20, region 0, 4 bytes
    ];
    raw.send(&request, &[]);
    raw.turn().unwrap();
    let mut answer = [0; 64];
    let (count, _) = rustix::net::recv(&raw.peer, &mut answer[..], rustix::net::RecvFlags::DONTWAIT).unwrap();
    #[rustfmt::skip]
    let expected = [
        0x34, 0x12, 9, 0, 36, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, // the same id, size 36, a reply
        0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0xde, 0xad, 0xbe, 0xef,
    ];
    assert_eq!(&answer[..count], expected);
}

#[test]
fn a_write_with_the_no_reply_bit_is_done_and_not_answered_even_if_it_fails() {
    let mut raw = Raw::ready();
    raw.send(&message(1, 10, 0x10, &[&words(&[4, 0, 0, 2])[..], &[5, 6]].concat()), &[]);
    raw.send(&message(2, 10, 0x10, &[&words(&[4, 0, 2, 2])[..], &[5, 6]].concat()), &[]);
    raw.send(&message(3, 10, 0x10, &words(&[4])), &[]);
    raw.settle().unwrap();
    assert_eq!(raw.replies(), []);
    assert_eq!(raw.model.bytes[4..6], [5, 6]);
    assert_eq!(raw.session.counters().posted_writes, 2);
}

#[test]
fn no_command_with_the_no_reply_bit_is_answered_whether_it_succeeds_or_fails() {
    // Each succeeds in this order, except VERSION, which was sent already, and FEATURE, which does not exist.
    let commands: [(u16, Vec<u8>); 12] = [
        (1, qemu_version()),
        (2, words(&[32, 3, 0, 0, 0x1000, 0, 0x1000, 0])),
        (3, words(&[24, 0, 0x1000, 0, 0x1000, 0])),
        (4, words(&[16, 0, 0, 0])),
        (5, words(&[64, 0, 1, 0, 0, 0, 0, 0])),
        (7, words(&[16, 0, 2, 0])),
        (8, words(&[20, 1 | 32, 2, 0, 1])),
        (9, words(&[0, 0, 0, 4])),
        (10, [words(&[4, 0, 0, 2]), vec![5, 6]].concat()),
        (13, Vec::new()),
        (15, [words(&[1, 0, 8, 0, 0, 1]), vec![7; 8]].concat()),
        (16, words(&[8, 1 | 1 << 16 | 1 << 18])),
    ];
    let ready = || {
        let mut raw = Raw::ready();
        let areas = vec![Area { offset: 0x1000, size: 0x2000 }];
        let mapping = Mapping { fd: Arc::new(memfd(b"x")), offset: 0x3000, areas };
        raw.model.shared = Some(RegionInfo { mapping: Some(mapping), ..RegionInfo::trapped(0x4000) });
        raw
    };
    let (mut silent, mut answered) = (ready(), ready());
    let mut failed = 0;
    for (command, payload) in &commands {
        silent.send(&message(1, *command, 0x10, payload), &[]);
        silent.settle().unwrap();
        assert_eq!(silent.replies(), [], "command {command}");
        failed += u32::from(answered.errno(*command, payload, &[]) != 0);
    }
    assert_eq!(failed, 2);
    assert_eq!(
        (silent.model.calls(), silent.model.bytes),
        (answered.model.calls(), answered.model.bytes),
        "all were done"
    );
    // Commands that fail: on a region that always fails, cut short, or not served.
    silent.send(&message(1, 9, 0x10, &words(&[0, 0, 2, 4])), &[]);
    silent.send(&message(1, 10, 0x10, &words(&[0, 0, 2, 1, 0])), &[]);
    for command in (0..=20).chain([255, 65535]) {
        silent.send(&message(1, command, 0x10, &[1]), &[]);
        silent.send(&message(1, command, 0x10, &words(&[u32::MAX; 8])), &[&event()]);
    }
    silent.settle().unwrap();
    assert_eq!(silent.replies(), []);
    let counters = silent.session.counters();
    assert_eq!((counters.replies_sent, counters.errors_sent, counters.fds_sent), (1, 0, 0), "VERSION's alone");
    assert_eq!(answered.session.counters().fds_sent, 1);
    assert_eq!(silent.errno(9, &words(&[0, 0, 0, 4]), &[]), 0, "the session goes on");
}

#[test]
fn several_writes_in_one_message_are_done_in_order_and_counted_in_the_answer() {
    let mut raw = Raw::ready();
    let one = |offset: u32, count: u32, data: [u8; 8]| [&words(&[offset, 0, 0, count])[..], &data].concat();
    let writes = [one(0, 1, [1, 0, 0, 0, 0, 0, 0, 0]), one(0, 8, [2; 8]), one(3, 2, [3, 4, 9, 9, 9, 9, 9, 9])].concat();
    raw.send(&message(5, 15, 0, &[&words(&[3, 0])[..], &writes].concat()), &[]);
    raw.settle().unwrap();
    let expected = Reply { id: 5, command: 15, flags: 1, error: 0, payload: words(&[3, 0]) };
    assert_eq!(raw.replies(), [expected]);
    assert_eq!(raw.model.bytes[..9], [2, 2, 2, 3, 4, 2, 2, 2, 0]);
    let too_long = [&words(&[1, 0])[..], &one(0, 9, [1; 8])].concat();
    assert_eq!(raw.errno(15, &too_long, &[]), EINVAL);
    let too_many = [&words(&[2, 0])[..], &one(0, 8, [1; 8])].concat();
    assert_eq!(raw.errno(15, &too_many, &[]), EINVAL);
    assert_eq!(raw.errno(15, &words(&[u32::MAX, u32::MAX]), &[]), EINVAL);
    assert_eq!(raw.model.bytes[..9], [2, 2, 2, 3, 4, 2, 2, 2, 0]);
}

#[test]
fn a_string_of_accesses_to_one_port_is_one_message_between_sides_that_agreed_on_it() {
    let mut raw = Raw::fresh();
    let json = b"{\"capabilities\":{\"port_strings\":true}}\0";
    raw.send(&message(1, 1, 0, &[&[0, 0, 1, 0], &json[..]].concat()), &[]);
    raw.turn().unwrap();
    let answer = String::from_utf8(raw.replies()[0].payload[4..].to_vec()).unwrap();
    assert!(answer.contains("\"port_strings\":true"), "{answer}");
    // Offset 254 of region 0, which has 256 bytes: six bytes, two at a time.
    let place = [254, 0, 2 << 24, 6];
    raw.send(&message(2, 10, 0, &[&words(&place)[..], &[1, 2, 3, 4, 5, 6]].concat()), &[]);
    raw.send(&message(3, 9, 0, &words(&place)), &[]);
    raw.settle().unwrap();
    let payload = [&words(&place)[..], &[5, 6, 5, 6, 5, 6]].concat();
    let replies = raw.replies();
    assert_eq!((replies[0].payload.as_slice(), replies[1].payload.as_slice()), (&words(&place)[..], &payload[..]));
    let writes = [[1, 2], [3, 4], [5, 6]].map(|bytes| DeviceCall::Write(0, 254, bytes.to_vec()));
    let calls = raw.model.calls();
    assert_eq!((&calls[..3], &calls[3..]), (&writes[..], &[(); 3].map(|()| DeviceCall::Read(0, 254, 2))[..]));
    // Refused: an impossible port width, a partial access, an access beyond the region, one above the agreed limit, an unknown
    // region.
    for place in
        [[0, 0, 3 << 24, 6], [0, 0, 8 << 24, 8], [0, 0, 2 << 24, 5], [254, 0, 4 << 24, 8], [0, 0, 1 << 24 | 9, 4]]
    {
        assert_eq!(raw.errno(9, &words(&place), &[]), EINVAL, "{place:x?}");
    }
    assert_eq!(raw.errno(9, &words(&[0, 0, 4 << 24, 0]), &[]), 0, "a string of none");
    assert_eq!(raw.errno(9, &words(&[0, 0, 4 << 24, (1 << 20) + 4]), &[]), EINVAL);
    assert_eq!(raw.model.calls().len(), 6);
    assert_eq!(Raw::ready().errno(9, &words(&[0, 0, 4 << 24, 8]), &[]), EINVAL, "nobody spoke of strings");
}

#[test]
fn region_info_cut_by_argsz_says_how_much_is_needed_and_names_no_capability_as_none_follows() {
    let mut raw = Raw::ready();
    let areas = vec![Area { offset: 0x1000, size: 0x2000 }];
    let mapping = Mapping { fd: Arc::new(memfd(b"x")), offset: 0x3000, areas };
    raw.model.shared = Some(RegionInfo { mapping: Some(mapping), ..RegionInfo::trapped(0x4000) });
    let ask = |argsz: u32| words(&[argsz, 0, 1, 0, 0, 0, 0, 0]);
    raw.send(&message(1, 5, 0, &ask(32)), &[]);
    raw.send(&message(2, 5, 0, &ask(64)), &[]);
    raw.settle().unwrap();
    let replies = raw.replies();
    let (short, whole) = (&replies[0].payload, &replies[1].payload);
    // libvfio-user, test/py/test_device_get_region_info.py, test_device_get_region_info_small_argsz_caps.
    assert_eq!(short, &words(&[64, 7, 1, 0, 0x4000, 0, 0x3000, 0]));
    let fixed = words(&[64, 0xf, 1, 32, 0x4000, 0, 0x3000, 0]);
    let capability = [&[1, 0, 1, 0][..], &words(&[0, 1, 0, 0x1000, 0, 0x2000, 0])].concat();
    assert_eq!(whole, &[fixed, capability].concat());
    assert_eq!(raw.session.counters().fds_sent, 1, "only with the whole");
    assert_eq!(raw.errno(5, &ask(31), &[]), EINVAL);
}

#[test]
fn device_and_interrupt_info_are_these_bytes() {
    let mut raw = Raw::ready();
    raw.send(&message(1, 4, 0, &words(&[16, 0, 0, 0])), &[]);
    raw.send(&message(2, 7, 0, &words(&[16, 0, 0, 0])), &[]);
    raw.send(&message(3, 7, 0, &words(&[16, 0, 2, 0])), &[]);
    raw.settle().unwrap();
    let payloads: Vec<_> = raw.replies().into_iter().map(|r| r.payload).collect();
    assert_eq!(payloads, [words(&[16, 3, 9, 3]), words(&[16, 7, 0, 1]), words(&[16, 3, 2, 40])]);
    for index in 0..8 {
        let errno = raw.errno(7, &words(&[16, 0, index, 0]), &[]);
        assert_eq!(errno, if index < 3 { 0 } else { EINVAL }, "{index}: as many are there as were said to be");
    }
    assert_eq!(raw.errno(7, &words(&[15, 0, 0, 0]), &[]), EINVAL);
}

#[test]
fn unmapping_answers_with_the_window_that_is_gone() {
    let mut raw = Raw::ready();
    assert_eq!(raw.errno(2, &words(&[32, 3, 0, 0, 0x1000, 0, 0x1000, 0]), &[]), 0);
    let window = words(&[24, 0, 0x1000, 0, 0x1000, 0]);
    raw.send(&message(4, 3, 0, &window), &[]);
    raw.settle().unwrap();
    assert_eq!(raw.replies()[0].payload, window);
    let calls = raw.model.calls();
    assert_eq!(calls.last(), Some(&DeviceCall::Unmap(Some((0x1000, 0x1000)))));
    assert_eq!(raw.errno(3, &words(&[24, 2, 0x1000, 0, 0, 0]), &[]), EINVAL, "all, but an address");
    assert_eq!(raw.errno(3, &words(&[24, 2, 0, 0, 0, 0]), &[]), 0);
    assert_eq!(raw.errno(2, &words(&[31, 3, 0, 0, 0x1000, 0, 0x1000, 0]), &[]), EINVAL, "argsz");
    assert_eq!(raw.errno(2, &words(&[32, 3, 0, 0, 0x1000, 0, 0, 0]), &[]), EINVAL, "no size");
    assert_eq!(raw.errno(2, &words(&[32, 4, 0, 0, 0x1000, 0, 0x1000, 0]), &[]), EINVAL, "flags");
    // Refused or not: 2^52 bytes, one byte more, and the 64-bit address space except a page.
    for (size, errno) in [([0, 1 << 20], 0), ([1, 1 << 20], EINVAL), ([0xffff_f000, u32::MAX], EINVAL)] {
        assert_eq!(raw.errno(2, &words(&[32, 3, 0, 0, 0x1000, 0, size[0], size[1]]), &[]), errno, "{size:x?}");
    }
}

/// The cases of libvfio-user's test/py/test_device_set_irqs.py, with MSI-X of 40 vectors instead of 2048.
#[test]
fn set_irqs_is_refused_wherever_libvfio_user_refuses_it() {
    const NONE: u32 = 1;
    const BOOL: u32 = 2;
    const EVENTFD: u32 = 4;
    const MASK: u32 = 8;
    const UNMASK: u32 = 16;
    const TRIGGER: u32 = 32;
    const MSIX: u32 = 2;
    let mut raw = Raw::ready();
    let set = |flags, index, start, count| words(&[20, flags, index, start, count]);
    let bad = [
        ("short", words(&[0, 0])),
        ("bad argsz", words(&[3, TRIGGER | NONE, 4, 0, 0])),
        ("bad index", set(TRIGGER | NONE, 5, 0, 0)),
        ("mask and unmask", set(MASK | UNMASK, MSIX, 0, 0)),
        ("none and bool", set(MASK | NONE | BOOL, MSIX, 0, 0)),
        ("no action", set(NONE, MSIX, 0, 1)),
        ("no data type", set(MASK, MSIX, 0, 1)),
        ("unknown flag", set(MASK | NONE | 64, MSIX, 0, 1)),
        ("range", set(MASK | NONE, MSIX, 39, 2)),
        ("range 2", set(MASK | NONE, MSIX, 41, 1)),
        ("range 3", set(TRIGGER | EVENTFD, MSIX, 28, 0xffff_ffff)),
        ("err", set(MASK | NONE, 3, 0, 1)),
        ("req", set(MASK | NONE, 4, 0, 1)),
        ("start for count 0", set(MASK | NONE, MSIX, 1, 0)),
        ("action for count 0", set(MASK | NONE, MSIX, 0, 0)),
        ("data for count 0", set(TRIGGER | BOOL, MSIX, 0, 0)),
        ("too few booleans", [set(TRIGGER | BOOL, MSIX, 0, 2), vec![0]].concat()),
        ("too many booleans", [set(TRIGGER | BOOL, MSIX, 0, 2), vec![0, 0, 0]].concat()),
    ];
    for (name, payload) in bad {
        assert_eq!(raw.errno(8, &payload, &[]), EINVAL, "{name}");
    }
    let fd = event();
    let with_bool = [set(TRIGGER | BOOL, MSIX, 0, 1), vec![0]].concat();
    assert_eq!(raw.errno(8, &with_bool, &[&fd]), EINVAL, "descriptors with booleans");
    assert_eq!(raw.errno(8, &set(TRIGGER | NONE, MSIX, 0, 1), &[&fd]), EINVAL, "descriptors without data");
    assert_eq!(raw.errno(8, &set(TRIGGER | EVENTFD, MSIX, 0, 2), &[&fd]), EINVAL, "one descriptor for two");
    assert_eq!(raw.session.counters().fds_refused, 3);
    let (first, second) = (event(), event());
    assert_eq!(raw.errno(8, &set(TRIGGER | EVENTFD, MSIX, 0, 2), &[&first, &second]), 0);
    assert_eq!(raw.errno(8, &set(TRIGGER | NONE, MSIX, 1, 1), &[]), 0);
    assert_eq!((take(&first), take(&second)), (0, 1));
    let booleans = [set(TRIGGER | BOOL, MSIX, 0, 2), vec![0, 1]].concat();
    assert_eq!(raw.errno(8, &booleans, &[]), 0);
    assert_eq!((take(&first), take(&second)), (0, 1));
    assert_eq!(raw.errno(8, &set(TRIGGER | EVENTFD, MSIX, 1, 1), &[]), 0, "no descriptor takes it away");
    assert_eq!(raw.errno(8, &set(TRIGGER | NONE, MSIX, 0, 2), &[]), 0);
    assert_eq!((take(&first), take(&second)), (1, 0));
    assert_eq!(raw.errno(8, &set(TRIGGER | NONE, MSIX, 0, 0), &[]), 0);
    assert_eq!(raw.errno(8, &set(TRIGGER | NONE, MSIX, 0, 2), &[]), 0);
    assert_eq!((take(&first), take(&second)), (0, 0));
}

#[test]
fn commands_that_are_not_served_are_answered_with_an_error_and_the_session_goes_on() {
    const ENOTTY: u32 = 25;
    const EOPNOTSUPP: u32 = 95;
    let mut raw = Raw::ready();
    for command in [0, 11, 12, 14, 17, 18, 19, 255, 65535] {
        assert_eq!(raw.errno(command, &[], &[]), EOPNOTSUPP, "{command}");
    }
    assert_eq!(raw.errno(16, &words(&[8, 1 | 1 << 16 | 1 << 18]), &[]), ENOTTY);
    assert_eq!(raw.errno(1, &qemu_version(), &[]), EINVAL, "a second VERSION");
    assert_eq!(raw.errno(13, &[], &[]), 0);
    assert_eq!(raw.model.calls(), [DeviceCall::Reset]);
}

#[test]
fn an_access_larger_than_the_limit_or_past_the_last_address_never_reaches_the_device() {
    let mut raw = Raw::ready();
    assert_eq!(raw.errno(9, &words(&[0, 0, 3, 1 << 16]), &[]), 0);
    assert_eq!(raw.errno(9, &words(&[0, 0, 3, (1 << 20) + 1]), &[]), EINVAL);
    assert_eq!(raw.errno(9, &words(&[u32::MAX, u32::MAX, 3, 4]), &[]), EINVAL);
    assert_eq!(raw.errno(10, &words(&[0, 0, 0, 4]), &[]), EINVAL, "a write without its data");
    assert_eq!(raw.errno(9, &words(&[0, 0, 3, 0]), &[]), 0, "nothing of anything");
    assert_eq!(raw.model.calls(), [DeviceCall::Read(3, 0, 1 << 16)]);
}

#[test]
fn an_access_that_does_not_lie_within_its_region_never_reaches_the_device() {
    let mut raw = Raw::ready();
    let whole = [&words(&[0, 0, 0, 256])[..], &[7; 256]].concat();
    assert_eq!(raw.errno(10, &whole, &[]), 0);
    assert_eq!(raw.errno(9, &words(&[252, 0, 0, 4]), &[]), 0);
    let calls = raw.model.calls();
    assert_eq!(calls.len(), 2);
    // Offset (low, high), region and count: one byte too far; far too long; an offset above 32 bits; no such region.
    for place in [[253, 0, 0, 4], [256, 0, 0, 1], [0, 0, 0, 1 << 20], [0, 1, 0, 4], [0, 0, 4, 4], [0, 0, u32::MAX, 4]] {
        let mut write = words(&place);
        write.resize(16 + place[3] as usize, 0);
        for flags in [0, 0x10] {
            raw.send(&message(1, 9, flags, &words(&place)), &[]);
            raw.settle().unwrap();
            let errors: Vec<u32> = raw.replies().iter().map(|reply| reply.error).collect();
            assert_eq!(errors, if flags == 0 { vec![EINVAL] } else { vec![] }, "{place:x?}");
        }
        if place[3] <= 8 {
            assert_eq!(raw.errno(10, &write, &[]), EINVAL, "{place:x?}");
            write.resize(24, 0);
            let well = [&words(&[0, 0, 0, 1])[..], &[1; 8]].concat();
            assert_eq!(raw.errno(15, &[&words(&[2, 0])[..], &well, &write].concat(), &[]), EINVAL, "{place:x?}");
        }
    }
    assert_eq!(raw.model.calls(), calls);
    let counters = raw.session.counters();
    assert_eq!((counters.reads, counters.writes), (1, 1));
}

#[test]
fn an_access_larger_than_the_client_has_agreed_to_never_reaches_the_device() {
    let mut raw = Raw::fresh();
    let payload = [&[0, 0, 1, 0], &b"{\"capabilities\":{\"max_data_xfer_size\":4096}}\0"[..]].concat();
    assert_eq!(raw.errno(1, &payload, &[]), 0);
    assert_eq!(raw.errno(9, &words(&[0, 0, 3, 4097]), &[]), EINVAL);
    let write = [&words(&[0, 0, 2, 4097])[..], &[0; 4097]].concat();
    assert_eq!(raw.errno(10, &write, &[]), EINVAL);
    assert_eq!(raw.model.calls(), []);
    assert_eq!(raw.errno(9, &words(&[0, 0, 3, 4096]), &[]), 0);
}
