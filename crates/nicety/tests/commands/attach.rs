//! `nicety attach --format`, against what the book says that a VM needs.

use std::path::Path;

use roxmltree::{Document, Node};

use crate::scratch::Scratch;

/// The ports of the book's page.
const HOST: &str = "\
[switch]
name = \"lan\"

[[port]]
name = \"web1\"
adapter = \"virtio-net\"
mac = \"52:54:00:12:34:01\"
socket = \"/run/nicety/web1.sock\"

[[port]]
name = \"web1-b\"
adapter = \"e1000\"
mac = \"52:54:00:12:34:02\"
socket = \"/run/nicety/web1-b.sock\"
";

/// An element with all that is in it, written in one way.
fn shown(node: Node<'_, '_>) -> String {
    let name = node.tag_name();
    let mut attributes: Vec<String> =
        node.attributes().map(|one| format!(" {}={:?}", one.name(), one.value())).collect();
    attributes.sort();
    let inner: String = node.children().filter(Node::is_element).map(shown).collect();
    format!("<{:?} {}{}>{inner}</>", name.namespace(), name.name(), attributes.concat())
}

/// The elements of a domain.
fn elements(xml: &str) -> Vec<String> {
    let xml = Document::parse(xml).unwrap();
    xml.root_element().children().filter(Node::is_element).map(shown).collect()
}

#[test]
fn a_domain_of_the_book_has_what_attach_prints_for_libvirt() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/beside-libvirt.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks: Vec<&str> = page.split("```xml\n").skip(1).map(|block| block.split_once("```").unwrap().0).collect();
    let [rings, _metadata, function] = blocks[..] else { panic!("{blocks:?}") };
    let scratch = Scratch::with(HOST);
    let printed = |port: &str| {
        let ended = scratch.run(&["attach", port, "--format", "libvirt"]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        elements(&ended.out)
    };
    assert_eq!(printed("web1"), elements(&format!("<domain>{rings}</domain>")));
    let (memory, arguments) = (printed("web1")[0].clone(), elements(function));
    assert_eq!(printed("web1-b"), [&[memory][..], &arguments].concat(), "its memory is that of the first port");
}
