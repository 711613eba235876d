# Grapevine for the CPU: a host or a party in a container, without root. See docs/administrators.md.
#
#     docker build --tag grapevine .
#
# torch in requirements.lock is the build without CUDA. If your package index does not have it, name one that does:
#     docker build --build-arg PIP_EXTRA_INDEX_URL=... --tag grapevine .

FROM python:3.11-slim AS build
ARG PIP_EXTRA_INDEX_URL
ARG PIP_FIND_LINKS
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY requirements.lock ./
RUN python -m venv /opt/grapevine
RUN /opt/grapevine/bin/pip install --require-hashes --only-binary :all: --requirement requirements.lock
COPY LICENSE README.md pyproject.toml ./
COPY src src
RUN /opt/grapevine/bin/pip install --no-deps --no-build-isolation --no-index .
RUN /opt/grapevine/bin/pip uninstall --yes pip

FROM python:3.11-slim
RUN groupadd --gid 10001 grapevine && useradd --uid 10001 --gid 10001 --create-home --shell /usr/sbin/nologin grapevine
COPY --from=build /opt/grapevine /opt/grapevine
COPY deploy/play.py /opt/grapevine/play.py
ENV PATH=/opt/grapevine/bin:$PATH NUMBA_CACHE_DIR=/tmp/numba PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /home/grapevine
EXPOSE 8443
STOPSIGNAL SIGINT
ENTRYPOINT ["grapevine"]
CMD ["--help"]
