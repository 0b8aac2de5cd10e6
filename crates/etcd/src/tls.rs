//! TLS 1.3 (RFC 8446) by rustls: the server's certificate is checked against the CAs that the settings name, and its name.

use std::io;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::endpoint::Scheme;
use crate::error::{Error, ErrorKind};
use crate::settings::{Pem, Settings};

fn wrong(words: String) -> Error {
    Error::new(ErrorKind::Settings(words))
}

fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>, Error> {
    let name = &pem.name;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem.text).collect();
    let found = found.map_err(|error| wrong(format!("{name}: no certificates in PEM format ({error})")))?;
    if found.is_empty() {
        return Err(wrong(format!("{name}: no certificate is in it: it needs `-----BEGIN CERTIFICATE-----`")));
    }
    Ok(found)
}

/// The settings for TLS. `None`: no endpoint needs it.
pub(crate) fn connector(settings: &Settings) -> Result<Option<TlsConnector>, Error> {
    let Some(endpoint) = settings.endpoints.iter().find(|endpoint| endpoint.scheme == Scheme::Https) else {
        // Who names a CA wants TLS.
        return match (&settings.ca, &settings.identity) {
            (None, None) => Ok(None),
            _ => Err(wrong(
                "a CA or a certificate is named, and no endpoint begins with https://: write https://".to_owned(),
            )),
        };
    };
    let Some(ca) = &settings.ca else {
        return Err(wrong(format!("{endpoint}: name the file of the CA that has signed etcd's certificate")));
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots
            .add(certificate)
            .map_err(|error| wrong(format!("{}: a certificate that is no CA's ({error})", ca.name)))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let builder = builder.map_err(|error| wrong(format!("TLS: {error}")))?.with_root_certificates(roots);
    let config = match &settings.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let (chain, name) = (certificates(&identity.certificates)?, &identity.key.name);
            let key = PrivateKeyDer::from_pem_slice(&identity.key.text);
            let key = key.map_err(|error| wrong(format!("{name}: no private key in PEM format ({error})")))?;
            let with = builder.with_client_auth_cert(chain, key);
            with.map_err(|error| {
                wrong(format!("{name}: not the key of the certificate in {} ({error})", identity.certificates.name))
            })?
        }
    };
    Ok(Some(TlsConnector::from(Arc::new(config))))
}

/// The name that the server's certificate must have.
pub(crate) fn server_name(host: &str) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(host.to_owned()).map_err(|_| {
        wrong(format!("`{host}` is no name that a certificate can have: write the server's DNS name or address"))
    })
}

/// The fault of TLS and its remedy, as a sentence. `None`: TLS has not failed.
pub(crate) fn sentence(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match error {
        rustls::Error::InvalidCertificate(why) => certificate(why),
        rustls::Error::AlertReceived(
            alert @ (AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::AccessDenied),
        ) => format!(
            "etcd does not accept our certificate ({alert:?}): name a client certificate, and its key, of the CA in etcd's --trusted-ca-file"
        ),
        rustls::Error::AlertReceived(AlertDescription::ProtocolVersion) | rustls::Error::PeerIncompatible(_) => {
            format!(
                "TLS 1.3 is not to be had there ({error}): etcd 3.4 has it; see its --tls-max-version, or a proxy in between"
            )
        }
        rustls::Error::InvalidMessage(_) => {
            format!(
                "what answers does not speak TLS ({error}): if etcd listens without it, write http:// in place of https://"
            )
        }
        other => format!("TLS fails: {other}"),
    })
}

fn certificate(why: &CertificateError) -> String {
    let why_not = rustls::Error::InvalidCertificate(why.clone());
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("etcd's certificate has expired ({why_not}): renew it, or set this machine's clock")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("etcd's certificate is not valid yet ({why_not}): set this machine's clock")
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            format!("etcd's certificate is not signed by the CA that was named ({why_not}): name the CA that signed it")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!(
                "etcd's certificate is for another name ({why_not}): write a name that it has, or renew it with this one"
            )
        }
        _ => format!("etcd's certificate cannot be used ({why_not})"),
    }
}
