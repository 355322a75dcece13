# A server of a saved model:
#   docker build -t energate .
#   docker run -p 8000:8000 -v ./models:/models -e ENERGATE_API_KEY=... energate /models/flowers.zip
# Without a model it serves the digits that come with the package.
FROM python:3.12-slim

WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
# The wheels of torch for the CPU alone are a tenth of the size of those for GPUs.
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu '.[serve,tables,images]' \
    && rm -rf /build \
    && useradd --create-home energate

USER energate
WORKDIR /home/energate
EXPOSE 8000
HEALTHCHECK CMD python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health')"
ENTRYPOINT ["energate", "serve", "--host", "0.0.0.0", "--port", "8000"]
