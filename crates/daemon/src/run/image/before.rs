//! Earlier versions of images, which earlier builds hand over. They never change.

use nicety_adapter::snapshot::{Nothing, RestoreError, Version};
use nicety_plane::{SavedAgent, SavedFrames, SavedNumbers};
use nicety_vfio_user::Unread;
use nicety_vhost_user::SavedSession1;
use serde::{Deserialize, Serialize};

use super::{FrontImage, FunctionImage, Image, LinkImage, PortImage, RingsImage, UplinkImage};

/// Version 3: gates were not handed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image3 {
    ports: Vec<PortImage3>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PortImage3 {
    name: String,
    id: u16,
    numbers: SavedNumbers,
    signals: u64,
    waiting: SavedFrames,
    agents: Vec<SavedAgent>,
    link: LinkImage,
    unread: Option<Unread>,
}

impl Version for Image3 {
    const NUMBER: u16 = 3;
    type Before = Image2;

    fn from_before(before: Image2) -> Result<Self, RestoreError> {
        Ok(before.into())
    }
}

impl From<Image3> for Image {
    fn from(before: Image3) -> Self {
        let port = |PortImage3 { name, id, numbers, signals, waiting, agents, link, unread }| PortImage {
            name,
            id,
            numbers,
            signals,
            waiting,
            agents,
            link,
            unread,
            gate: None,
        };
        Self { ports: before.ports.into_iter().map(port).collect() }
    }
}

/// Version 2: agents were not handed over, and no handled messages were in a VMM's socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image2 {
    ports: Vec<PortImage2>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PortImage2 {
    name: String,
    id: u16,
    numbers: SavedNumbers,
    signals: u64,
    waiting: SavedFrames,
    link: LinkImage,
}

impl Version for Image2 {
    const NUMBER: u16 = 2;
    type Before = Image1;

    fn from_before(before: Image1) -> Result<Self, RestoreError> {
        Ok(before.into())
    }
}

impl From<Image2> for Image3 {
    fn from(before: Image2) -> Self {
        let port = |PortImage2 { name, id, numbers, signals, waiting, link }| PortImage3 {
            name,
            id,
            numbers,
            signals,
            waiting,
            agents: Vec::new(),
            link,
            unread: None,
        };
        Self { ports: before.ports.into_iter().map(port).collect() }
    }
}

/// Version 1: an uplink was a descriptor, without a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image1 {
    ports: Vec<PortImage1>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct PortImage1 {
    name: String,
    id: u16,
    numbers: SavedNumbers,
    signals: u64,
    link: LinkImage1,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum LinkImage1 {
    Function(Box<FunctionImage>),
    Uplink(Option<u32>),
    Rings(RingsImage),
}

impl Version for Image1 {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl From<Image1> for Image2 {
    fn from(before: Image1) -> Self {
        let link = |link| match link {
            LinkImage1::Function(function) => LinkImage::Function(function),
            LinkImage1::Rings(rings) => LinkImage::Rings(rings),
            LinkImage1::Uplink(descriptor) => LinkImage::Uplink(
                descriptor.map(|descriptor| UplinkImage { descriptors: vec![descriptor], state: Vec::new() }),
            ),
        };
        let port = |PortImage1 { name, id, numbers, signals, link: old }| PortImage2 {
            name,
            id,
            numbers,
            signals,
            waiting: SavedFrames::default(),
            link: link(old),
        };
        Self { ports: before.ports.into_iter().map(port).collect() }
    }
}

/// Version 1 of a vhost-user port: its session's log of written pages was not handed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrontImage1 {
    name: String,
    listener: Option<u32>,
    session: Option<SavedSession1>,
    calls: Vec<(u16, u32)>,
    errors: Vec<(u16, u32)>,
}

impl Version for FrontImage1 {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl From<FrontImage1> for FrontImage {
    fn from(FrontImage1 { name, listener, session, calls, errors }: FrontImage1) -> Self {
        Self { name, listener, session: session.map(Into::into), calls, errors }
    }
}
