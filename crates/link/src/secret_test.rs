//! Peers that know a public key and lack the private one, or hold the key of the other role.

use std::io;

use rustls::{ClientConnection, ServerConnection};

use super::*;

const KEY: [u8; 32] = [7; 32];

/// The errors of the end that connects and of the end that accepts, in memory.
fn handshake(connects: ClientConfig, accepts: ServerConfig) -> [Option<Error>; 2] {
    let name = ServerName::try_from("nicety").unwrap();
    let mut client = ClientConnection::new(Arc::new(connects), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(accepts)).unwrap();
    let mut errors = [None, None];
    for _ in 0..4 {
        let mut wire = io::Cursor::new(Vec::new());
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        wire.set_position(0);
        while server.read_tls(&mut wire).unwrap() > 0 {
            errors[1] = errors[1].take().or(server.process_new_packets().err());
        }
        let mut wire = io::Cursor::new(Vec::new());
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        wire.set_position(0);
        while client.read_tls(&mut wire).unwrap() > 0 {
            errors[0] = errors[0].take().or(client.process_new_packets().err());
        }
    }
    assert_eq!(errors == [None, None], !client.is_handshaking() && !server.is_handshaking());
    errors
}

fn configs() -> (ClientConfig, ServerConfig) {
    let secret = Secret::new(&KEY).unwrap();
    (ClientConfig::clone(&secret.connects), ServerConfig::clone(&secret.accepts))
}

/// Shows one public key and signs by another.
fn impostor(shows: &[u8], signs: Pair) -> Arc<CertifiedKey> {
    let public = Pair::derived(&KEY, shows).unwrap().public();
    Arc::new(CertifiedKey::new(vec![CertificateDer::from(public.as_ref().to_vec())], Arc::new(signs)))
}

fn pair(key: u8, role: &[u8]) -> Pair {
    Pair::derived(&[key; 32], role).unwrap()
}

#[test]
fn both_ends_of_one_key_agree_on_tls_13_without_tickets() {
    let (client, server) = configs();
    assert_eq!((server.send_tls13_tickets, server.max_early_data_size, client.enable_early_data), (0, 0, false));
    assert_eq!(handshake(client, server), [None, None]);
}

#[test]
fn a_public_key_without_its_private_key_is_refused_in_each_role() {
    let (mut client, server) = configs();
    let thief = AlwaysResolvesClientRawPublicKeys::new(impostor(CONNECTS, pair(8, CONNECTS)));
    client.client_auth_cert_resolver = Arc::new(thief);
    let [_, why] = handshake(client, server);
    assert_eq!(crate::LinkError::from(why.unwrap()), crate::LinkError::Key);

    let (client, mut server) = configs();
    server.cert_resolver = Arc::new(AlwaysResolvesServerRawPublicKeys::new(impostor(ACCEPTS, pair(8, ACCEPTS))));
    for why in handshake(client, server) {
        assert_eq!(crate::LinkError::from(why.unwrap()), crate::LinkError::Key);
    }
}

#[test]
fn the_key_of_the_other_role_is_refused() {
    let swapped = |connects, accepts| Secret::from_pairs(pair(7, connects), pair(7, accepts)).unwrap();
    let (client, server) = configs();
    let reflected = swapped(ACCEPTS, CONNECTS);
    for why in handshake(client.clone(), ServerConfig::clone(&reflected.accepts)) {
        assert_eq!(crate::LinkError::from(why.unwrap()), crate::LinkError::Key);
    }
    let mut reflected = client;
    let own = impostor(ACCEPTS, pair(7, ACCEPTS));
    reflected.client_auth_cert_resolver = Arc::new(AlwaysResolvesClientRawPublicKeys::new(own));
    let [_, why] = handshake(reflected, server);
    assert_eq!(crate::LinkError::from(why.unwrap()), crate::LinkError::Key);
}

#[test]
fn a_seed_is_hkdf_sha256_of_the_shared_key() {
    // What `openssl kdf` 3.0 and `openssl pkey -pubout -outform DER` say of this key, the salt and the labels.
    let public = |role| pair(7, role).public().as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(
        public(CONNECTS),
        "302a300506032b6570032100d6637ba638727396f4774da0ce8005f1df2b5d102d0d1023f0bb783f3728bd96"
    );
    assert_eq!(
        public(ACCEPTS),
        "302a300506032b6570032100dcbeb27fdfad0fe51e13081ccfd8b1635492ba2db6d757855ae013abaeedae59"
    );
}

#[test]
fn nothing_of_a_key_is_printed() {
    let secret = Secret::new(&KEY).unwrap();
    assert_eq!(format!("{secret:?} {:?}", pair(7, CONNECTS)), "Secret Pair");
}
