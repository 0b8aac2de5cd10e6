//! The log's bytes: few, authentic, and read back as they were.

use nicety_lab::replay::channel::{ChannelError, Reader, Writer};
use nicety_lab::replay::log::Piece;
use nicety_lab::replay::{Entry, GuestTime, Input, Message};
use nicety_lease::NodeId;
use nicety_protect::Pairing;
use proptest::prelude::*;

const KEY: &[u8] = b"a key of sixteen bytes or more";

fn ends() -> (Writer, Reader) {
    (Writer::new(KEY, 1), Reader::new(KEY, 1))
}

fn log(first: u64, entries: Vec<Entry>) -> Message {
    Message::Log(Piece { pairing: Pairing(65_537), first, is_part: false, entries, state: None })
}

fn frame(at: u64, bytes: usize) -> Entry {
    Entry { at: GuestTime(at), input: Input::Frame(vec![0x5a; bytes]), check: 1 }
}

/// A frame of which nothing can be foretold.
fn noise(at: u64, bytes: usize) -> Entry {
    let byte = |n: u64| (at.wrapping_mul(0x9e37_79b9).wrapping_add(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    Entry { at: GuestTime(at), input: Input::Frame((0..bytes as u64).map(byte).collect()), check: 1 }
}

/// Bytes of the log for frames of this size that arrive this many microseconds apart, so many a message.
fn logged(bytes: usize, apart_us: u64, batch: usize, frames: usize) -> usize {
    let (mut writer, mut reader) = ends();
    let mut out = Vec::new();
    let first_input = 1_000_000_000;
    for message in 0..frames / batch {
        let first = message * batch;
        let entries = (first..first + batch).map(|n| noise(5_000_000 + n as u64 * apart_us, bytes)).collect();
        writer.write(&log(first_input + first as u64, entries), &mut out);
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
    let (mut writer, reader) = ends();
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
    let (mut writer, mut reader) = ends();
    let mut bytes = Vec::new();
    writer.write(&log(5, vec![frame((1 << 60) + 1, 60)]), &mut bytes);
    reader.push(&bytes);
    assert_eq!(reader.read(), Err(ChannelError::Malformed));
}

#[test]
fn a_message_that_is_left_out_or_repeated_is_noticed() {
    let (mut writer, reader) = ends();
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
fn bytes_of_another_key_or_of_the_other_direction_are_noticed() {
    let mut bytes = Vec::new();
    Writer::new(KEY, 1).write(&log(5, Vec::new()), &mut bytes);
    for mut reader in [Reader::new(b"another key", 1), Reader::new(KEY, 2)] {
        reader.push(&bytes);
        assert_eq!(reader.read(), Err(ChannelError::Forged));
    }
    let sentence = "a message is not authentic: another key, or altered on the way";
    assert_eq!(ChannelError::Forged.to_string(), sentence);
}

fn entry() -> impl Strategy<Value = Entry> {
    let input = prop_oneof![Just(Input::Wake), proptest::collection::vec(any::<u8>(), 0..200).prop_map(Input::Frame)];
    (0..1_u64 << 50, input, any::<u8>()).prop_map(|(at, input, check)| Entry { at: GuestTime(at), input, check })
}

fn message() -> impl Strategy<Value = Message> {
    let entries = proptest::collection::vec(entry(), 0..5);
    let piece = (any::<u64>(), 0..1_u64 << 60, any::<bool>(), entries, any::<Option<u64>>());
    prop_oneof![
        piece.prop_map(|(pairing, first, is_part, entries, state)| {
            Message::Log(Piece { pairing: Pairing(pairing), first, is_part, entries, state })
        }),
        any::<u64>().prop_map(|run| Message::Offer(NodeId(run))),
        any::<u64>().prop_map(Message::Differs),
        any::<u64>().prop_map(Message::TooOld),
        any::<[u64; 2]>().prop_map(|[pairing, epoch]| {
            Message::Protect(nicety_protect::Message::Loaded(Pairing(pairing), epoch))
        }),
        Just(Message::Protect(nicety_protect::Message::Alive)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_are_read_as_they_were_written(messages in proptest::collection::vec(message(), 1..6), cut in 1..64_usize) {
        let (mut writer, mut reader) = ends();
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
