//! Frames out of the switch, one by one: the part that is the same for every uplink that takes one frame at a time.

use nicety_adapter::{Counters, Delivery, Frames, Packet, Piece, Reason, Scratch, Unfolded, Wants};

/// Result for one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Taken,
    /// No room now.
    Full,
    Dropped(Reason),
}

/// Destination of pieces.
pub(crate) trait Sink {
    fn wants(&self, packet: &Packet) -> Wants;
    fn put(&mut self, piece: &mut Piece<'_>) -> Put;
}

/// Offers frames to a sink, and counts them. If only some pieces of a packet find room, the rest is refused.
pub(crate) fn deliver(frames: &Frames<'_>, counters: &mut Counters, sink: &mut impl Sink) -> Delivery {
    let mut delivery = Delivery::default();
    let mut scratch = Scratch::new();
    let mut full = false;
    for (index, pick, packet) in frames.iter() {
        if full {
            delivery.refuse(index, 0, pick.from.into());
            continue;
        }
        let unfolded = match Unfolded::new(frames, pick, sink.wants(packet)) {
            Ok(unfolded) => unfolded,
            Err(reason) => {
                counters.receive_drop(reason);
                continue;
            }
        };
        full = offer(index, &unfolded, &mut scratch, counters, sink, &mut delivery);
    }
    delivery
}

/// Offers one packet, piece by piece. True if the sink is full.
pub(crate) fn offer(
    index: usize,
    unfolded: &Unfolded<'_>,
    scratch: &mut Scratch,
    counters: &mut Counters,
    sink: &mut impl Sink,
    delivery: &mut Delivery,
) -> bool {
    let packet = unfolded.packet();
    let (ended, put) = put_all(unfolded, scratch, sink);
    match put {
        Put::Taken => counters.received(0, u64::from(packet.frames()), u64::from(packet.len())),
        Put::Dropped(reason) => counters.receive_drop(reason),
        Put::Full => delivery.refuse(index, 0, ended),
    }
    put == Put::Full
}

/// Puts the wanted pieces until one is not taken. Returns that piece's number (the count of pieces if all were taken), and the
/// result.
pub(crate) fn put_all(unfolded: &Unfolded<'_>, scratch: &mut Scratch, sink: &mut impl Sink) -> (u32, Put) {
    for index in unfolded.wanted() {
        let Some(mut piece) = unfolded.piece(index, scratch) else { return (index, Put::Dropped(Reason::BadOffload)) };
        let put = sink.put(&mut piece);
        if put != Put::Taken {
            return (index, put);
        }
    }
    (unfolded.count(), Put::Taken)
}
