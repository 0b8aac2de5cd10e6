//! The book's examples of this crate equal the files here, and run.

#[path = "../examples/vmm.rs"]
mod vmm;

#[path = "../examples/messages.rs"]
mod messages;

#[test]
fn the_books_vmm_carries_a_frame_from_one_guest_to_the_other() {
    vmm::main().unwrap();
}

#[test]
fn a_masked_message_waits_in_the_books_vmm() {
    messages::main().unwrap();
}

#[test]
fn the_book_shows_the_vmm_as_it_is() {
    let book = include_str!("../../../docs/writing-a-vmm.md");
    let shown = book
        .split("<!-- crates/plane/examples/vmm.rs -->\n```rust\n")
        .nth(1)
        .and_then(|rest| rest.split("```\n\n").next());
    let file = include_str!("../examples/vmm.rs");
    // The file's first lines describe it: the book has its own text for that.
    let (_, program) = file.split_once("//! ```\nuse ").unwrap();
    assert_eq!(shown, Some(&*format!("use {program}")));
}
