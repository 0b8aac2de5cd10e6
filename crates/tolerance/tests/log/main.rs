//! The log's bytes: few, authentic, and read back as they were.

use nicety_lease::NodeId;
use nicety_tolerance::channel::{self, HELLO, PROTOCOL, Reader, Writer};
use nicety_tolerance::{Call, ChannelError, Entry, GuestTime, Key, Message};
use proptest::prelude::*;

const KEY: &[u8] = b"a key of sixteen bytes or more";

fn joined(key: &[u8], other: &[u8]) -> (Writer, Reader) {
    let (key, other) = (Key::new(key), Key::new(other));
    let hellos = [key.hello(PROTOCOL, 5, 7, [1; 16]), other.hello(PROTOCOL, 5, 7, [2; 16])];
    let (writer, _) = channel::joined(&key, &hellos[0], &hellos[1]).unwrap();
    let (_, reader) = channel::joined(&other, &hellos[1], &hellos[0]).unwrap();
    (writer, reader)
}

fn log(first: u64, entries: Vec<Entry>) -> Message {
    Message::Log { epoch: 3, first, released: first.saturating_sub(2), entries, state: None }
}

fn frame(at: u64, bytes: usize) -> Entry {
    Entry { at: GuestTime(at), call: Call::Frame(vec![0x5a; bytes]), check: 1 }
}

/// A frame of which nothing can be foretold.
fn noise(at: u64, bytes: usize) -> Entry {
    let byte = |n: u64| (at.wrapping_mul(0x9e37_79b9).wrapping_add(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    Entry { at: GuestTime(at), call: Call::Frame((0..bytes as u64).map(byte).collect()), check: 1 }
}

/// Bytes of the log for frames of this size that arrive this many microseconds apart, so many a message.
fn logged(bytes: usize, apart_us: u64, batch: usize, frames: usize) -> usize {
    let (mut writer, mut reader) = joined(KEY, KEY);
    let mut out = Vec::new();
    let first_call = 1_000_000_000;
    for message in 0..frames / batch {
        let first = message * batch;
        let entries = (first..first + batch).map(|n| noise(5_000_000 + n as u64 * apart_us, bytes)).collect();
        writer.write(&log(first_call + first as u64, entries), &mut out);
    }
    reader.push(&out);
    for _ in 0..frames / batch {
        assert!(reader.read().unwrap().is_some());
    }
    assert_eq!(reader.read(), Ok(None));
    out.len()
}

/// VMware's log of received traffic was 1.07 times of it (950 Mbit/s for 890).
#[test]
fn the_log_of_received_frames_is_at_most_a_fiftieth_more_than_they_are() {
    for batch in [1, 4, 16] {
        let bytes = logged(1514, 12, batch, 4800);
        let ratio = bytes as f64 / (4800.0 * 1514.0);
        println!("{batch:2} frames of 1514 bytes a message: {ratio:.4} times what was received");
        assert!(ratio <= 1.02, "{batch} frames a message: {ratio}");
    }
}

/// A receiver acknowledges every second segment by 54 bytes, or by 66 with timestamps (RFC 7323), as Linux does.
#[test]
fn the_log_of_a_transmission_is_at_most_three_in_a_hundred_of_it() {
    for (ack, batch) in [(54, 1), (66, 2), (66, 8)] {
        let bytes = logged(ack, 24, batch, 4800);
        let ratio = bytes as f64 / (4800.0 * 2.0 * 1514.0);
        println!("{batch:2} acknowledgements of {ack} bytes a message: {:.2} % of what was sent", ratio * 100.0);
        assert!(ratio <= 0.03, "{batch} acknowledgements of {ack} bytes a message: {ratio}");
    }
}

#[test]
fn a_byte_that_is_altered_anywhere_is_noticed() {
    let (mut writer, reader) = joined(KEY, KEY);
    let mut bytes = Vec::new();
    writer.write(&log(5, vec![frame(9, 60)]), &mut bytes);
    for at in 0..bytes.len() {
        let mut reader = reader.clone();
        let mut altered = bytes.clone();
        altered[at] ^= 0x10;
        reader.push(&altered);
        // A length that is altered may ask for more bytes: then the message never comes.
        let read = reader.read();
        assert!(matches!(read, Err(_) | Ok(None)), "byte {at}: {read:?}");
    }
}

#[test]
fn a_time_that_no_guest_reaches_is_refused() {
    let (mut writer, mut reader) = joined(KEY, KEY);
    let mut bytes = Vec::new();
    writer.write(&log(5, vec![frame((1 << 60) + 1, 60)]), &mut bytes);
    reader.push(&bytes);
    assert_eq!(reader.read(), Err(ChannelError::Malformed));
}

#[test]
fn a_message_that_is_left_out_or_repeated_is_noticed() {
    let (mut writer, reader) = joined(KEY, KEY);
    let messages: [Vec<u8>; 2] = std::array::from_fn(|n| {
        let mut bytes = Vec::new();
        writer.write(&log(n as u64, vec![frame(9, 60)]), &mut bytes);
        bytes
    });
    let mut left_out = reader.clone();
    left_out.push(&messages[1]);
    assert_eq!(left_out.read(), Err(ChannelError::Forged));
    let mut repeated = reader;
    repeated.push(&messages[0]);
    repeated.push(&messages[0]);
    assert!(repeated.read().unwrap().is_some());
    assert_eq!(repeated.read(), Err(ChannelError::Forged));
}

#[test]
fn a_peer_with_another_key_version_build_or_guest_is_refused() {
    let key = Key::new(KEY);
    let ours = key.hello(PROTOCOL, 5, 7, [1; 16]);
    let refused = |theirs: [u8; HELLO]| channel::joined(&key, &ours, &theirs).err();
    assert_eq!(refused(Key::new(b"another").hello(PROTOCOL, 5, 7, [2; 16])), Some(ChannelError::Forged));
    assert_eq!(refused(key.hello(PROTOCOL, 5, 8, [2; 16])), Some(ChannelError::Settings));
    let other = refused(key.hello(PROTOCOL, 6, 7, [2; 16])).unwrap();
    assert_eq!(other, ChannelError::Build);
    assert_eq!(other.to_string(), "the peer is another build of this program: both hosts need the same one");
    assert_eq!(refused(ours), Some(ChannelError::Forged));
    let mut later = key.hello(PROTOCOL, 5, 7, [2; 16]);
    later[4] = 9;
    let other = refused(later).unwrap();
    assert_eq!(other, ChannelError::Version(9, 3));
    assert_eq!(other.to_string(), "the peer speaks version 9 of the log, not 3");
    assert_eq!(refused([0x47; HELLO]), Some(ChannelError::Magic));
    assert_eq!(refused(key.hello(PROTOCOL, 5, 7, [2; 16])), None);
}

fn entry() -> impl Strategy<Value = Entry> {
    let call = prop_oneof![
        Just(Call::Wake),
        Just(Call::Renew),
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(Call::Frame)
    ];
    (0..1_u64 << 50, call, any::<u8>()).prop_map(|(at, call, check)| Entry { at: GuestTime(at), call, check })
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        (any::<u32>(), 0..1_u64 << 60, 0..1_u64 << 60, proptest::collection::vec(entry(), 0..5), any::<Option<u64>>())
            .prop_map(|(epoch, first, released, entries, state)| Message::Log {
                epoch,
                first,
                released,
                entries,
                state
            }),
        (any::<u64>(), any::<u64>()).prop_map(|(from, calls)| Message::Known { from: NodeId(from), calls }),
        (any::<u64>(), any::<u64>()).prop_map(|(from, call)| Message::Diverged { from: NodeId(from), call }),
        any::<u64>().prop_map(|base| Message::TooOld { base }),
        (any::<u32>(), any::<[u64; 4]>(), 0..1_u64 << 60, proptest::collection::vec(any::<u8>(), 0..200)).prop_map(
            |(epoch, [calls, state, len, offset], at, bytes)| Message::Image {
                epoch,
                calls,
                at: GuestTime(at),
                state,
                len,
                offset,
                bytes
            }
        ),
        any::<[u64; 3]>().prop_map(|[from, calls, bytes]| Message::Assembled { from: NodeId(from), calls, bytes }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_are_read_as_they_were_written(messages in proptest::collection::vec(message(), 1..6), cut in 1..64_usize) {
        let (mut writer, mut reader) = joined(KEY, KEY);
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| writer.write(message, &mut bytes));
        let mut read = Vec::new();
        for piece in bytes.chunks(cut) {
            reader.push(piece);
            while let Some(message) = reader.read().unwrap() {
                read.push(message);
            }
        }
        prop_assert_eq!(read, messages);
    }
}
