//! Marks in a frame's IP header: congestion (RFC 3168) and the differentiated services code point (RFC 2474). IPv4's checksum stays right.

/// Bits of the traffic class that say what a frame and its sender know of congestion (RFC 3168, section 5).
const CONGESTION: u8 = 3;

/// Marks a frame's IP header as having met congestion (RFC 3168, section 5). `l3`: the offset of the header. False if its sender does not
/// know such marks.
pub fn mark_congestion(head: &mut [u8], l3: usize) -> bool {
    change_class(head, l3, |class| (class & CONGESTION != 0).then_some(class | CONGESTION))
}

/// Gives a frame's IP header a differentiated services code point of 6 bits (RFC 2474, section 3). `l3`: the offset of the header. False
/// if there is none.
pub fn mark_dscp(head: &mut [u8], l3: usize, dscp: u8) -> bool {
    change_class(head, l3, |class| Some(dscp << 2 | class & CONGESTION))
}

/// Replaces the traffic class of an IP header by what `change` makes of it. False if it makes nothing of it, or there is no header.
fn change_class(head: &mut [u8], l3: usize, change: impl FnOnce(u8) -> Option<u8>) -> bool {
    let Some(header) = head.get_mut(l3..) else { return false };
    match header {
        // RFC 791, section 3.1.
        [first, class, _, _, _, _, _, _, _, _, sum_high, sum_low, ..] if *first >> 4 == 4 => {
            let Some(new) = change(*class) else { return false };
            let [before, after] = [*class, new].map(|class| u32::from(u16::from_be_bytes([*first, class])));
            *class = new;
            // RFC 1624, equation 3.
            let sum = u32::from(!u16::from_be_bytes([*sum_high, *sum_low])) + (!before & 0xffff) + after;
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
            [*sum_high, *sum_low] = sum.to_be_bytes();
            true
        }
        // The traffic class is bits 4 to 11 of the header (RFC 8200, section 3).
        [first, second, ..] if *first >> 4 == 6 => {
            let Some(new) = change(*first << 4 | *second >> 4) else { return false };
            (*first, *second) = (*first & 0xf0 | new >> 4, *second & 0x0f | new << 4);
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071's sum over a header, which must be 0xffff.
    fn sum(header: &[u8]) -> u32 {
        let words = header.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
        let sum: u32 = words.sum();
        (sum & 0xffff) + (sum >> 16)
    }

    /// IPv4 with this traffic class and a right checksum.
    fn v4(class: u8) -> [u8; 20] {
        let mut header = [0x45, class, 0, 40, 1, 2, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let check = !(sum(&header) as u16);
        header[10..12].copy_from_slice(&check.to_be_bytes());
        header
    }

    #[test]
    fn a_mark_keeps_the_checksum_right_and_is_made_only_if_the_sender_knows_it() {
        let mut capable = v4(0xb9);
        assert!(mark_congestion(&mut capable, 0) && capable[1] == 0xbb && sum(&capable) == 0xffff);
        let mut not_capable = v4(0xb8);
        assert!(!mark_congestion(&mut not_capable, 0) && not_capable == v4(0xb8));
        let mut v6 = [0x60, 0x20, 0, 0, 0, 20, 6, 64];
        assert!(mark_congestion(&mut v6, 0) && v6[..2] == [0x60, 0x30]);
        assert!(!mark_congestion(&mut [0x60, 0x0f, 0, 0], 0) && !mark_congestion(&mut [], 0));
        assert!(!mark_congestion(&mut [0x45, 3], 0), "a header that is cut off");
    }

    #[test]
    fn a_code_point_replaces_six_bits_and_leaves_congestion_label_and_checksum_right() {
        for before in 0..=255 {
            for dscp in [0, 10, 46, 63] {
                let mut header = v4(before);
                assert!(mark_dscp(&mut header, 0, dscp));
                assert_eq!((header[1], sum(&header)), (dscp << 2 | before & 3, 0xffff), "{before:#x} to {dscp}");
            }
        }
        // Version 6, class 0xff, flow label 0x12345; then class 46 << 2 | 3 = 0xbb.
        let mut v6 = [0x6f, 0xf1, 0x23, 0x45];
        assert!(mark_dscp(&mut v6, 0, 46) && v6 == [0x6b, 0xb1, 0x23, 0x45]);
        let mut arp = [0, 1, 8, 0, 6, 4, 0, 1, 0, 0, 0, 0];
        assert!(!mark_dscp(&mut arp, 0, 46) && arp == [0, 1, 8, 0, 6, 4, 0, 1, 0, 0, 0, 0]);
        assert!(!mark_dscp(&mut [0x45, 3], 0, 46) && !mark_dscp(&mut [], 0, 46) && !mark_dscp(&mut [0x45], 9, 46));
    }
}
