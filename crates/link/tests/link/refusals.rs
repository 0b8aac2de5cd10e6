//! Peers without the key, and what is no peer at all.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;

use nicety_link::{Link, LinkError, Secret, SecretError};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{AlertDescription, ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, sign};

use crate::ends::{links, noise, reason, reasons, secret, tcp, unix};

const OTHER_KEY: &str = "the other host has another key: the file of [ft] key must be the same on both hosts";

#[test]
fn another_key_is_refused_in_the_same_words_at_both_ends() {
    let (one, two) = (secret(1), secret(2));
    for (sockets, keys) in [(tcp(), [&one, &two]), (unix(), [&two, &one])] {
        let mut links = links(sockets, keys);
        links.iter_mut().for_each(|link| assert!(link.write(b"secret") == 6));
        assert_eq!(reasons(&mut links).map(|why| why.to_string()), [OTHER_KEY; 2]);
        assert!(links.iter().all(|link| !link.is_established() && link.events().is_empty()));
    }
}

#[test]
fn a_key_that_differs_in_its_last_bit_is_another_key() {
    let (mut key, other) = ([9; 64], Secret::new(&[9; 64]).unwrap());
    key[63] ^= 1;
    let mut links = links(unix(), [&Secret::new(&key).unwrap(), &other]);
    assert_eq!(reasons(&mut links), [LinkError::Key, LinkError::Key]);
}

#[test]
fn a_short_key_is_refused_with_a_command_that_makes_one() {
    let why = Secret::new(b"passphrase").unwrap_err();
    assert_eq!(why, SecretError::Short(10));
    assert!(
        why.to_string().contains("at least 32 random bytes, and this one has 10: make one with head -c 32"),
        "{why}"
    );
}

/// A client that trusts everybody, with or without a word about raw public keys.
#[derive(Debug)]
struct Trusting {
    is_raw: bool,
}

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.is_raw
    }
}

/// It promises a raw public key and shows none.
#[derive(Debug)]
struct Shy;

impl rustls::client::ResolvesClientCert for Shy {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<sign::CertifiedKey>> {
        None
    }

    fn only_raw_public_keys(&self) -> bool {
        true
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The reason of the end that accepts, and of this client.
fn against(config: ClientConfig) -> (LinkError, Error) {
    let (stream, theirs) = UnixStream::pair().unwrap();
    let mut link = Link::accept(theirs.into(), &secret(7)).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), ServerName::try_from("nicety").unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut why = None;
    loop {
        while client.wants_write() && client.write_tls(&mut &stream).is_ok() {}
        let _early = link.write(b"secret");
        why = why.or_else(|| link.turn().err());
        let _later = client.read_tls(&mut &stream);
        if let Err(error) = client.process_new_packets() {
            return (why.expect("the link's own reason"), error);
        }
        assert!(client.reader().read(&mut [0]).is_err(), "plaintext came out");
    }
}

#[test]
fn a_client_without_a_key_is_refused_and_gets_no_plaintext() {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let trusting = |is_raw| {
        ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Trusting { is_raw }))
    };
    for is_raw in [false, true] {
        let refused = Error::AlertReceived(AlertDescription::HandshakeFailure);
        assert_eq!(against(trusting(is_raw).with_no_client_auth()), (LinkError::NoKey, refused));
    }
    let refused = Error::AlertReceived(AlertDescription::CertificateRequired);
    let (why, alert) = against(trusting(true).with_client_cert_resolver(Arc::new(Shy)));
    assert_eq!((&why, alert), (&LinkError::NoKey, refused));
    assert_eq!(why.to_string(), "the other end shows no key: it is no Nicety daemon, or one of another version");
}

/// The reason of a link in each role whose peer says this and ends.
fn after(bytes: &[u8]) -> [LinkError; 2] {
    let key = secret(7);
    [Link::connect, Link::accept].map(|begin| {
        let (mut stream, theirs) = UnixStream::pair().unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        reason(&mut begin(theirs.into(), &key).unwrap())
    })
}

#[test]
fn a_peer_that_does_not_speak_tls_is_quoted() {
    for (said, shown) in [
        (&b"SSH-2.0-OpenSSH_10.0\r\n"[..], "it began with the text \"SSH-2.0-OpenSSH_10.0\\r\\n\":"),
        (b"GET / HTTP/1.1\r\nHost: one\r\n\r\n", "it began with the text \"GET / HTTP/1.1\\r\\nHost: on\":"),
        (&[0, 0, 0, 0x17, 0xff], "it began with the bytes 00 00 00 17 ff:"),
        (&[22, 2], "it began with the bytes 16 02:"),
    ] {
        for why in after(said).map(|why| why.to_string()) {
            assert!(why.starts_with("the other end does not speak TLS") && why.contains(shown), "{why}");
        }
    }
    assert_eq!(after(&[]), [LinkError::Cut, LinkError::Cut]);
}

#[test]
fn random_bytes_end_a_link_in_each_role() {
    for seed in 0..500 {
        let mut bytes = noise(usize::try_from(seed).unwrap() % 97 * 7 + 1, seed);
        if seed % 2 == 1 {
            // A record's header, so that its content is looked at.
            let header = [22, 3, 3, 0, (seed % 251) as u8];
            bytes.splice(..bytes.len().min(5), header);
        }
        for why in after(&bytes) {
            let is_expected = matches!(
                why,
                LinkError::NotTls(_) | LinkError::Tls(_) | LinkError::Cut | LinkError::NoKey | LinkError::Refused(_)
            );
            assert!(is_expected, "{seed}: {why:?}");
        }
    }
}

#[test]
fn a_descriptor_that_is_no_stream_socket_is_refused() {
    let key = secret(7);
    let (datagrams, _other) = UnixDatagram::pair().unwrap();
    let why = Link::connect(datagrams.into(), &key).unwrap_err();
    assert_eq!(why.to_string(), "this is neither a TCP nor a UNIX stream socket");
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(matches!(Link::accept(file.into(), &key), Err(LinkError::Io(_))));
}

#[test]
fn a_connection_that_is_refused_is_the_error_of_a_turn() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket: OwnedFd = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
    // At once, or later.
    let _refused = connect(&socket, &nobody);
    let why = Link::connect(socket, &secret(7)).map_or_else(|why| why, |mut link| reason(&mut link));
    assert!(matches!(why, LinkError::Io(rustix::io::Errno::CONNREFUSED) | LinkError::Cut), "{why:?}");
}
