//! `nicety fabric certificates`: a CA and a certificate for etcd's servers, for those who have none.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use nicety_etcd::Endpoint;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use crate::exit::{Exit, Failure};
use crate::output;

use super::secret;

/// The name in the CA's certificate. The CA is known by it and by its key.
const CA_NAME: &str = "Nicety fabric CA";
/// Years for which a certificate is valid.
const YEARS: i32 = 10;
const SECONDS_A_YEAR: u64 = 31_556_952;

fn failed(error: impl ToString) -> Failure {
    Failure::new(Exit::Failed, error)
}

/// Begins a certificate of this name: valid from the beginning of this year, so that a clock that is slow does not matter much.
fn begun(mut params: CertificateParams, name: &str) -> Result<CertificateParams, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(failed)?;
    let year = i32::try_from(1970 + now.as_secs() / SECONDS_A_YEAR).map_err(failed)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    (params.not_before, params.not_after) = (date_time_ymd(year, 1, 1), date_time_ymd(year + YEARS, 12, 31));
    Ok(params)
}

fn ca() -> Result<CertificateParams, Failure> {
    let mut params = begun(CertificateParams::default(), CA_NAME)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// The CA's key: that in the folder, or a new one with its certificate.
fn ca_key(folder: &Path) -> Result<KeyPair, Failure> {
    let (certificate, key) = (folder.join("ca.pem"), folder.join("ca.key"));
    match (certificate.exists(), key.exists()) {
        (true, true) => {
            let text = std::fs::read_to_string(&key).map_err(|error| failed(format!("{}: {error}", key.display())))?;
            KeyPair::from_pem(&text).map_err(|error| failed(format!("{}: {error}", key.display())))
        }
        (false, false) => {
            let pair = KeyPair::generate().map_err(failed)?;
            let made = ca()?.self_signed(&pair).map_err(failed)?;
            secret::write(&key, &pair.serialize_pem())?;
            public(&certificate, &made.pem())?;
            Ok(pair)
        }
        (has_certificate, _) => {
            let (there, lacking) = if has_certificate { (certificate, key) } else { (key, certificate) };
            let what = format!(
                "{} is there, and {} is not: name a folder with both, or with neither",
                there.display(),
                lacking.display()
            );
            Err(Failure::new(Exit::Usage, what))
        }
    }
}

fn public(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|error| failed(format!("{}: {error}", file.display())))
}

/// Makes them.
pub fn make(folder: &Path, etcd: &[Endpoint]) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|error| failed(format!("{}: {error}", folder.display())))?;
    let (certificate, key) = (folder.join("etcd.pem"), folder.join("etcd.key"));
    if let Some(there) = [&certificate, &key].into_iter().find(|file| file.exists()) {
        let what = format!("{} is there already: move it away for another certificate of the same CA", there.display());
        return Err(Failure::new(Exit::Usage, what));
    }
    let issuer = Issuer::new(ca()?, ca_key(folder)?);
    let names: BTreeSet<String> = etcd.iter().map(|endpoint| endpoint.host.clone()).collect();
    let names: Vec<String> = names.into_iter().collect();
    let mut params = begun(CertificateParams::new(names.clone()).map_err(failed)?, "etcd")?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // The gateway is a client of its own server: with --client-cert-auth it shows this certificate there.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let pair = KeyPair::generate().map_err(failed)?;
    let made = params.signed_by(&pair, &issuer).map_err(failed)?;
    secret::write(&key, &pair.serialize_pem())?;
    public(&certificate, &made.pem())?;
    let shown = folder.display();
    output::print(&format!(
        "made {0} for {1}: etcd --cert-file={0} --key-file={2}\n{shown}/ca.pem is for all who ask etcd: --ca, etcd_ca\n\
         {shown}/ca.key signs further certificates: keep it away from other machines\n",
        certificate.display(),
        names.join(", "),
        key.display()
    ))
}
