use std::io::Cursor;

use super::*;

/// A block: its type, its body.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = (12 + body.len() as u32).to_le_bytes();
    [&kind.to_le_bytes()[..], &len, body, &len].concat()
}

/// Statistics of an interface that has lost `lost` frames.
fn statistics(interface: u32, lost: u64) -> Vec<u8> {
    let options = [&[4, 0, 8, 0][..], &9u64.to_le_bytes(), &[5, 0, 8, 0], &lost.to_le_bytes(), &[0; 4]].concat();
    block(STATISTICS, &[&interface.to_le_bytes()[..], &[0; 8], &options].concat())
}

/// A source that delivers one byte at a time, and sometimes would block.
struct Slow(Cursor<Vec<u8>>, bool);

impl Read for Slow {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.1 = !self.1;
        if self.1 { Err(io::ErrorKind::WouldBlock.into()) } else { self.0.read(&mut into[..1]) }
    }
}

#[test]
fn whole_blocks_are_copied_and_the_latest_losses_of_each_interface_are_told() {
    let file =
        [block(1, &[0; 8]), block(PACKET, &[7; 32]), statistics(0, 3), statistics(1, 4), statistics(0, 5)].concat();
    let torn = [file.clone(), block(PACKET, &[7; 32])[..20].to_vec()].concat();
    let mut out = Vec::new();
    let sum = copy(Slow(Cursor::new(torn), false), &mut out, None, &AtomicBool::new(false)).unwrap();
    assert_eq!((sum, out), (Sum { frames: 1, lost: 9, ended: true }, file));
}

#[test]
fn it_ends_after_so_many_frames_and_by_a_signal() {
    let file = block(PACKET, &[7; 32]).repeat(5);
    let mut out = Vec::new();
    let sum = copy(Cursor::new(file.clone()), &mut out, Some(2), &AtomicBool::new(false)).unwrap();
    assert_eq!((sum.frames, sum.ended, out.len()), (2, false, 88));
    let sum = copy(Cursor::new(file), Vec::new(), None, &AtomicBool::new(true)).unwrap();
    assert_eq!(sum, Sum::default());
}

#[test]
fn what_is_no_pcapng_is_refused() {
    let nonsense = Cursor::new(b"HTTP/1.1 200 OK".to_vec());
    let error = copy(nonsense, Vec::new(), None, &AtomicBool::new(false)).unwrap_err();
    assert_eq!(error.message, "what the daemon sends is no pcapng");
}
