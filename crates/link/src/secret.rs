//! The keys of a connection, derived from the key that both hosts share, and the check that a peer has the right one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ring::hkdf::{HKDF_SHA256, Salt};
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring as provider, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime, alg_id};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::{CertifiedKey, Signer, SigningKey, public_key_to_spki};
use rustls::time_provider::TimeProvider;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureAlgorithm,
    SignatureScheme, version,
};

/// Fewest bytes of a shared key.
pub const KEY_BYTES_MIN: usize = 32;

/// Salt of HKDF (RFC 5869). Another derivation needs another one.
const SALT: &[u8] = b"nicety link 1";
const CONNECTS: &[u8] = b"the host that connects";
const ACCEPTS: &[u8] = b"the host that accepts";

/// The reason why bytes are no key.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SecretError {
    /// It has only so many bytes.
    #[error(
        "a key has at least {KEY_BYTES_MIN} random bytes, and this one has {0}: make one with head -c 32 /dev/urandom"
    )]
    Short(usize),
    /// TLS cannot be set up with it.
    #[error("TLS cannot be set up: {0}")]
    Tls(Error),
}

/// The shared key as TLS configurations: how this host connects, and how it accepts. A clone is cheap.
#[derive(Clone)]
pub struct Secret {
    pub(crate) connects: Arc<ClientConfig>,
    pub(crate) accepts: Arc<ServerConfig>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// From the key that both hosts share: [`KEY_BYTES_MIN`] random bytes or more.
    ///
    /// # Errors
    /// The key is too short.
    pub fn new(key: &[u8]) -> Result<Self, SecretError> {
        if key.len() < KEY_BYTES_MIN {
            return Err(SecretError::Short(key.len()));
        }
        Self::from_pairs(Pair::derived(key, CONNECTS)?, Pair::derived(key, ACCEPTS)?)
    }

    fn from_pairs(connects: Pair, accepts: Pair) -> Result<Self, SecretError> {
        // One suite and one exchange, of those that every TLS 1.3 must or should have (RFC 8446, section 9.1): both ends are ours.
        let provider = Arc::new(CryptoProvider {
            cipher_suites: vec![provider::cipher_suite::TLS13_AES_128_GCM_SHA256],
            kx_groups: vec![provider::kx_group::X25519],
            ..provider::default_provider()
        });
        let algorithms = provider.signature_verification_algorithms;
        let expected = |pair: &Pair| Arc::new(Expected { public: pair.public(), algorithms });
        let (connecting, accepting) = (expected(&connects), expected(&accepts));
        let (connects, accepts) = (connects.shown(), accepts.shown());

        let mut client = ClientConfig::builder_with_details(provider.clone(), Arc::new(NoClock))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(SecretError::Tls)?
            .dangerous()
            .with_custom_certificate_verifier(accepting)
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(connects)));
        client.resumption = Resumption::disabled();
        client.enable_sni = false;

        let mut server = ServerConfig::builder_with_details(provider, Arc::new(NoClock))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(SecretError::Tls)?
            .with_client_cert_verifier(connecting)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(accepts)));
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { connects: Arc::new(client), accepts: Arc::new(server) })
    }
}

/// Nothing that is checked here has a date.
#[derive(Debug)]
struct NoClock;

impl TimeProvider for NoClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::ZERO))
    }
}

/// A key pair of one role.
#[derive(Clone)]
struct Pair(Arc<Ed25519KeyPair>);

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pair")
    }
}

impl Pair {
    fn derived(key: &[u8], role: &[u8]) -> Result<Self, SecretError> {
        let mut seed = [0; 32];
        let pair = Salt::new(HKDF_SHA256, SALT)
            .extract(key)
            .expand(&[role], HKDF_SHA256)
            .and_then(|okm| okm.fill(&mut seed))
            .ok()
            .and_then(|()| Ed25519KeyPair::from_seed_unchecked(&seed).ok());
        pair.map(|pair| Self(Arc::new(pair))).ok_or_else(|| SecretError::Tls(Error::General("no key pair".into())))
    }

    fn public(&self) -> SubjectPublicKeyInfoDer<'static> {
        public_key_to_spki(&alg_id::ED25519, self.0.public_key())
    }

    /// As rustls wants it: a raw public key stands in the place of a certificate (RFC 7250, section 3).
    fn shown(self) -> Arc<CertifiedKey> {
        let public = CertificateDer::from(self.public().as_ref().to_vec());
        Arc::new(CertifiedKey::new(vec![public], Arc::new(self)))
    }
}

impl SigningKey for Pair {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&SignatureScheme::ED25519).then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(self.public())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ED25519
    }
}

impl Signer for Pair {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.0.sign(message).as_ref().to_vec())
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}

/// The only key that a peer may have.
#[derive(Debug)]
struct Expected {
    public: SubjectPublicKeyInfoDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Expected {
    fn check(&self, shown: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        if shown.as_ref() == self.public.as_ref() && others.is_empty() {
            return Ok(());
        }
        // It leaves as the alert access_denied, which the other end understands as another key.
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn check_signature(&self, message: &[u8], dss: &DigitallySignedStruct) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature_with_raw_key(message, &self.public, dss, &self.algorithms)
    }
}

fn tls12() -> Error {
    Error::General("TLS 1.2 is not spoken here".into())
}

impl ServerCertVerifier for Expected {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity, intermediates).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        _cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Expected {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity, intermediates).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        _cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.check_signature(message, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
#[path = "secret_test.rs"]
mod tests;
