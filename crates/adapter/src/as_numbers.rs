//! Values of lower crates as numbers, for serde: `#[serde(with = …)]`.

/// A VLAN tag as two numbers.
pub(crate) mod tag {
    use nicety_frame::{Tag, Tci};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(tag: &Tag, to: S) -> Result<S::Ok, S::Error> {
        (tag.tpid, tag.tci.0).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Tag, D::Error> {
        let (tpid, tci) = Deserialize::deserialize(from)?;
        Ok(Tag { tpid, tci: Tci(tci) })
    }
}

/// A kind of segmentation as a number.
pub(crate) mod segment_kind {
    use nicety_frame::SegmentKind;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    pub fn serialize<S: Serializer>(kind: &SegmentKind, to: S) -> Result<S::Ok, S::Error> {
        let number: u8 = match kind {
            SegmentKind::Tcp => 0,
            SegmentKind::Udp => 1,
            SegmentKind::Tunnel => 2,
        };
        number.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SegmentKind, D::Error> {
        match u8::deserialize(from)? {
            0 => Ok(SegmentKind::Tcp),
            1 => Ok(SegmentKind::Udp),
            2 => Ok(SegmentKind::Tunnel),
            number => Err(de::Error::invalid_value(de::Unexpected::Unsigned(number.into()), &"a kind of segmentation")),
        }
    }
}

/// Regions of guest memory as numbers: base, length, rights.
pub(crate) mod places {
    use nicety_memory::{Place, Rights};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(places: &[Place], to: S) -> Result<S::Ok, S::Error> {
        let numbers = places.iter().map(|Place { base, len, rights, is_shared }| {
            (*base, *len, u8::from(rights.read) | u8::from(rights.write) << 1 | u8::from(*is_shared) << 2)
        });
        numbers.collect::<Vec<_>>().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Place>, D::Error> {
        let numbers: Vec<(u64, u64, u8)> = Deserialize::deserialize(from)?;
        let place = |(base, len, bits): (u64, u64, u8)| {
            let rights = Rights { read: bits & 1 != 0, write: bits & 2 != 0 };
            Place { base, len, rights, is_shared: bits & 4 != 0 }
        };
        Ok(numbers.into_iter().map(place).collect())
    }
}
