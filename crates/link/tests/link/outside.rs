//! Judges that are not ours: `openssl s_client`, and with OpenSSL 3.2 or newer its raw public keys.

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use nicety_link::{Link, LinkError};

use crate::ends::{drain, reason, secret, wait};

/// What the program says, if this machine has it.
fn said(arguments: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let mut command = Command::new("openssl");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    child.stdin.take()?.write_all(input).ok()?;
    Some(child.wait_with_output().ok()?.stdout)
}

fn client(at: &TcpListener, more: &[&str]) -> std::process::Child {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &at.local_addr().unwrap().to_string(), "-msg"]).args(more);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The reason of a link that this `openssl s_client` connects to, and what that prints.
fn refused(more: &[&str]) -> (LinkError, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = client(&listener, more);
    let mut link = Link::accept(listener.accept().unwrap().0.into(), &secret(7)).unwrap();
    let why = reason(&mut link);
    drop(link);
    let output = client.wait_with_output().unwrap();
    (why, String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

fn is_there() -> bool {
    let is_there = said(&["version"], b"").is_some();
    if !is_there {
        println!("skipped: this machine has no openssl");
    }
    is_there
}

#[test]
fn openssl_without_the_key_is_refused() {
    if !is_there() {
        return;
    }
    let (why, printed) = refused(&[]);
    assert_eq!(why, LinkError::NoKey);
    // The server's own alert, as openssl reads it.
    assert!(printed.contains("fatal handshake_failure") && printed.contains("TLS 1.3"), "{printed}");
}

#[test]
fn openssl_with_tls_12_is_refused() {
    if !is_there() {
        return;
    }
    let (why, printed) = refused(&["-tls1_2"]);
    assert!(matches!(why, LinkError::Tls(_)), "{why:?}");
    assert!(printed.contains("fatal protocol_version"), "{printed}");
}

fn has_raw_public_keys() -> bool {
    let has = said(&["list", "-options", "s_client"], b"")
        .is_some_and(|options| String::from_utf8_lossy(&options).contains("enable_client_rpk"));
    if !has {
        println!("skipped: this machine has no OpenSSL with raw public keys (3.2 or newer)");
    }
    has
}

/// Files of a key pair that openssl alone derives from the shared key, with a certificate that carries it: s_client wants one.
fn derived(folder: &Path, key: u8) -> [String; 2] {
    let hex = format!("hexkey:{}", format!("{key:02x}").repeat(32));
    let (salt, info) = ("salt:nicety link 1", "info:the host that connects");
    let options = ["-kdfopt", "digest:SHA256", "-kdfopt", &hex, "-kdfopt", salt, "-kdfopt", info];
    let seed = said(&[&["kdf", "-keylen", "32", "-binary"], &options[..], &["HKDF"]].concat(), b"").unwrap();
    // PKCS #8 of an Ed25519 seed (RFC 8410, section 7).
    let prefix = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (private, certificate) = (file("key"), file("certificate"));
    said(&["pkey", "-inform", "DER", "-out", &private], &[&prefix, &seed[..]].concat()).unwrap();
    said(&["req", "-x509", "-key", &private, "-subj", "/CN=one", "-out", &certificate], b"").unwrap();
    [private, certificate]
}

#[test]
fn openssl_joins_with_the_derived_key_and_with_no_other() {
    if !has_raw_public_keys() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let raw = ["-enable_server_rpk", "-enable_client_rpk", "-quiet"];
    let (why, printed) = refused(&raw[..2]);
    assert_eq!(why, LinkError::NoKey);
    assert!(printed.contains("TLSv1.3") || printed.contains("TLS 1.3"), "{printed}");

    let [key, certificate] = derived(folder.path(), 8);
    let (why, _) = refused(&[&raw[..], &["-key", &key, "-cert", &certificate]].concat());
    assert_eq!(why, LinkError::Key);

    let [key, certificate] = derived(folder.path(), 7);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = client(&listener, &[&raw[..], &["-key", &key, "-cert", &certificate]].concat());
    let mut link = Link::accept(listener.accept().unwrap().0.into(), &secret(7)).unwrap();
    let mut words = client.stdin.take().unwrap();
    words.write_all(b"hello from another TLS\n").unwrap();
    let mut read = Vec::new();
    while read != b"hello from another TLS\n" {
        link.turn().unwrap();
        assert_eq!(drain(&mut link, &mut read), None);
        wait(&[&link], std::time::Duration::from_millis(100));
    }
    drop(words);
    client.kill().unwrap();
    client.wait().unwrap();
}
