//! The book's example of this crate equals the file here, and runs.

#[path = "../examples/vmm.rs"]
mod vmm;

#[test]
fn the_books_vmm_carries_a_frame_from_one_guest_to_the_other() {
    vmm::main().unwrap();
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
