//! VERSION: the first message each way, with capabilities in JSON (vfio-user.rst, "VFIO_USER_VERSION").

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Fields, MAX_DATA_TRANSFER, MAX_DMA_MAPS, MAX_MESSAGE_FDS, MAX_PEER_FDS, MAX_VERSION_DATA, Malformed, PAGE_SIZES,
    put_u16,
};

/// The capabilities of one side of a session. `None` is a key that the peer did not send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Most file descriptors that the sender receives in one message.
    pub max_msg_fds: Option<u64>,
    /// Most bytes of one data transfer.
    pub max_data_xfer_size: Option<u64>,
    /// Most DMA windows at a time.
    pub max_dma_maps: Option<u64>,
    /// Page sizes for DMA maps, or'ed together.
    pub pgsizes: Option<u64>,
    /// Whether it supports REGION_WRITE_MULTI.
    pub write_multiple: Option<bool>,
    /// Whether an access may be a [string](super::request::Access::string) of accesses to one port. This is an extension of this
    /// crate, not in the specification.
    pub port_strings: Option<bool>,
}

impl Capabilities {
    /// All capabilities of this crate.
    pub fn ours() -> Capabilities {
        Capabilities {
            max_msg_fds: Some(MAX_MESSAGE_FDS as u64),
            max_data_xfer_size: Some(MAX_DATA_TRANSFER as u64),
            max_dma_maps: Some(MAX_DMA_MAPS as u64),
            pgsizes: Some(PAGE_SIZES),
            write_multiple: Some(true),
            port_strings: Some(true),
        }
    }

    /// A server's answer to `proposed`: only capabilities that the client named, plus the two that every server states. The reply
    /// must not be longer than the request: QEMU reads it into a buffer of the request's size.
    pub fn answer(proposed: &Capabilities, max_dma_maps: usize) -> Capabilities {
        let ours = Capabilities::ours();
        Capabilities {
            max_msg_fds: ours.max_msg_fds,
            max_data_xfer_size: ours.max_data_xfer_size,
            max_dma_maps: proposed.max_dma_maps.map(|_| max_dma_maps as u64),
            pgsizes: proposed.pgsizes.and(ours.pgsizes),
            write_multiple: proposed.write_multiple.and_then(|theirs| theirs.then_some(true)),
            port_strings: proposed.port_strings.and_then(|theirs| theirs.then_some(true)),
        }
    }

    /// Whether this client gives a request up that is not answered in time, and takes a later answer for one that it does not expect.
    /// QEMU does (hw/vfio-user/proxy.c, vfio_user_send_wait), and names all of these (vfio_user_validate_version). Other known clients
    /// wait for ever.
    pub fn gives_up(&self) -> bool {
        let names_all = self.pgsizes.is_some() && self.max_dma_maps.is_some() && self.write_multiple.is_some();
        names_all && self.port_strings.is_none()
    }

    /// Most descriptors per message to this peer; 1 if it did not say.
    pub fn fd_limit(&self) -> usize {
        self.max_msg_fds.map_or(1, |n| n.min(MAX_MESSAGE_FDS as u64) as usize)
    }

    /// Most bytes of a data transfer with this peer; 1 MiB if it did not say.
    pub fn transfer_limit(&self) -> usize {
        self.max_data_xfer_size.map_or(MAX_DATA_TRANSFER, |n| n.min(MAX_DATA_TRANSFER as u64) as usize)
    }

    /// The capabilities as the JSON of a VERSION message, without its terminating NUL.
    pub fn to_json(&self) -> String {
        let mut map = Map::new();
        let numbers = [
            ("max_msg_fds", self.max_msg_fds),
            ("max_data_xfer_size", self.max_data_xfer_size),
            ("max_dma_maps", self.max_dma_maps),
            ("pgsizes", self.pgsizes),
        ];
        for (name, value) in numbers {
            if let Some(value) = value {
                map.insert(name.to_owned(), Value::from(value));
            }
        }
        for (name, value) in [("write_multiple", self.write_multiple), ("port_strings", self.port_strings)] {
            if let Some(value) = value {
                map.insert(name.to_owned(), Value::from(value));
            }
        }
        let mut top = Map::new();
        top.insert("capabilities".to_owned(), Value::Object(map));
        Value::Object(top).to_string()
    }

    /// Reads the JSON of a VERSION message, without its terminating NUL. Unknown keys are ignored. All keys of the specification
    /// are checked, even unused ones, so that the peer learns of a mistake at once.
    pub fn from_json(json: &[u8]) -> Result<Capabilities, Malformed> {
        let top: Value =
            serde_json::from_slice(json).map_err(|_| Malformed("the version's capabilities are not valid JSON"))?;
        let top = top.as_object().ok_or(Malformed("the version's JSON is not an object"))?;
        let Some(map) = top.get("capabilities") else {
            return Ok(Capabilities::default());
        };
        let map = map.as_object().ok_or(Malformed("\"capabilities\" is not an object"))?;
        let number = |name: &str| match map.get(name) {
            None => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or(Malformed("a capability is not a whole number")),
        };
        let flag = |name: &str, why| match map.get(name) {
            None => Ok(None),
            Some(value) => value.as_bool().map(Some).ok_or(Malformed(why)),
        };
        check_objects(map)?;
        let capabilities = Capabilities {
            max_msg_fds: number("max_msg_fds")?,
            max_data_xfer_size: number("max_data_xfer_size")?,
            max_dma_maps: number("max_dma_maps")?,
            pgsizes: number("pgsizes")?,
            write_multiple: flag("write_multiple", "\"write_multiple\" is not true or false")?,
            port_strings: flag("port_strings", "\"port_strings\" is not true or false")?,
        };
        if capabilities.max_msg_fds.is_some_and(|most| most > MAX_PEER_FDS) {
            return Err(Malformed("\"max_msg_fds\" is more than any message can carry"));
        }
        if capabilities.pgsizes == Some(0) {
            return Err(Malformed("\"pgsizes\" names no page size"));
        }
        Ok(capabilities)
    }
}

/// Checks the capabilities that are objects: `migration` (QEMU and libvfio-user send the page size of their bitmaps) and
/// `twin_socket`. Neither is served.
fn check_objects(map: &Map<String, Value>) -> Result<(), Malformed> {
    let member = |object: &str, name: &str, why| match map.get(object) {
        None => Ok(None),
        Some(value) => value.as_object().map(|object| object.get(name).cloned()).ok_or(Malformed(why)),
    };
    let page = member("migration", "pgsize", "\"migration\" is not an object")?;
    if page.is_some_and(|size| !size.as_u64().is_some_and(u64::is_power_of_two)) {
        return Err(Malformed("\"pgsize\" of \"migration\" is not the size of a page"));
    }
    let twin = member("twin_socket", "supported", "\"twin_socket\" is not an object")?;
    if twin.is_some_and(|supported| !supported.is_boolean()) {
        return Err(Malformed("\"supported\" of \"twin_socket\" is not true or false"));
    }
    Ok(())
}

/// The payload of VERSION, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Major version; both sides must have the same.
    pub major: u16,
    /// Minor version; the lower of both sides applies.
    pub minor: u16,
    /// The capabilities of the sender.
    pub capabilities: Capabilities,
}

impl Version {
    /// Reads the payload. The JSON is optional and ends with a NUL.
    pub fn decode(payload: &[u8]) -> Result<Version, Malformed> {
        let mut fields = Fields(payload);
        let (major, minor) = (fields.u16()?, fields.u16()?);
        let capabilities = match fields.rest() {
            [] => Capabilities::default(),
            data if data.len() > MAX_VERSION_DATA => return Err(Malformed("the version's JSON is too long")),
            [json @ .., 0] => Capabilities::from_json(json)?,
            _ => return Err(Malformed("the version's JSON does not end with a NUL")),
        };
        Ok(Version { major, minor, capabilities })
    }

    /// Appends the payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_u16(out, self.major);
        put_u16(out, self.minor);
        out.extend_from_slice(self.capabilities.to_json().as_bytes());
        out.push(0);
    }
}
