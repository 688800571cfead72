import assert from 'node:assert/strict'
import { test } from 'node:test'
import { findNextRuns, noteAnswer, onAnswer } from '../../web/plan/answers.mjs'
import { findRun, makeQuestion } from '../../web/plan/graph.mjs'
import { findRan, noteRuns } from '../../web/plan/ran.mjs'

/** A graph as LiteGraph has it. nodes: id to {type, widgets, outputs, mode}; links: [from, output, to, input, type]. */
function graphOf(nodes, links) {
  const graph = {
    getLink: (id) => (links[id] ? { origin_id: links[id][0], target_id: links[id][2] } : undefined),
    getNodeById: (id) => made[id] ?? null
  }
  const made = {}
  for (const [id, { type, widgets = {}, outputs = [], mode = 0 }] of Object.entries(nodes)) {
    made[id] = {
      id,
      type,
      mode,
      graph,
      widgets: Object.entries(widgets).map(([name, value]) => ({
        name,
        value,
        type: typeof value === 'string' ? 'combo' : 'number'
      })),
      outputs: outputs.map((kind, slot) => ({
        type: kind,
        links: links.flatMap((link, index) => (link[0] === id && link[1] === slot ? [index] : []))
      })),
      inputs: links.flatMap(([, , to, name, type], index) =>
        to === id ? [{ name, link: index, type: type ?? name.toUpperCase() }] : []
      )
    }
  }
  Object.assign(graph, { nodes: Object.values(made), rootGraph: graph, subgraphs: new Map() })
  return made
}

const NODE = { type: 'ParallelDiT_Parallelize', widgets: { mode: 'manual', cfg: 2, group: 2 }, outputs: ['MODEL'] }
const LOADER = {
  type: 'UNETLoader',
  widgets: { unet_name: 'flux.safetensors', weight_dtype: 'fp8_e5m2' },
  outputs: ['MODEL']
}
const FLUX = { files: { unet_name: 'flux.safetensors' }, weight_dtype: 'fp8_e5m2' }
const sampler = (cfg) => ({ type: 'KSampler', widgets: { sampler_name: 'euler', cfg }, outputs: ['LATENT'] })
const ask = (nodes, links) => makeQuestion(graphOf({ node: NODE, loader: LOADER, ...nodes }, links).node)
const LOADED = ['loader', 0, 'node', 'model']

test('the question follows the model through reroutes, bypassed nodes and LoRAs to its samplers', () => {
  const nodes = {
    lora: { type: 'LoraLoaderModelOnly', widgets: { lora_name: 'style.safetensors' }, outputs: ['MODEL'] },
    knee: { type: 'Reroute', outputs: ['*'] },
    skipped: { type: 'ModelThing', outputs: ['LATENT', 'MODEL'], mode: 4 },
    label: { type: 'ParallelDiT_ClassLabel', outputs: ['CONDITIONING'] },
    sampler: sampler(3),
    muted: { ...sampler(9), mode: 2 }
  }
  const links = [
    LOADED,
    ['node', 0, 'lora', 'model'],
    ['node', 0, 'label', 'model'],
    ['lora', 0, 'knee', ''],
    ['knee', 0, 'skipped', 'model'],
    ['skipped', 1, 'sampler', 'model'],
    ['lora', 0, 'muted', 'model']
  ]
  const samplers = [{ type: 'KSampler', cfg: 3, picture: null }]
  assert.deepEqual(ask(nodes, links), {
    question: { values: { mode: 'manual', cfg: 2 }, group: 2, ...FLUX, samplers },
    why: null
  })
})

test('the file is found up the line, whatever stands between, and of two models that of the first', () => {
  const nodes = {
    other: { ...LOADER, widgets: { unet_name: 'other.safetensors' } },
    merge: { type: 'ModelMergeSimple', widgets: { ratio: 1 }, outputs: ['MODEL'] },
    lora: { type: 'LoraLoader', widgets: { lora_name: 'style.safetensors' }, outputs: ['MODEL', 'CLIP'] },
    off: { type: 'ModelSamplingFlux', outputs: ['MODEL'], mode: 4 },
    knee: { type: 'Reroute', outputs: ['*'] },
    set: { type: 'SetNode', widgets: { Constant: 'base' }, outputs: ['*'] },
    get: { type: 'GetNode', widgets: { Constant: 'base' }, outputs: ['MODEL'] }
  }
  const links = [
    ['loader', 0, 'merge', 'model1', 'MODEL'],
    ['other', 0, 'merge', 'model2', 'MODEL'],
    ['merge', 0, 'set', 'MODEL', 'MODEL'],
    ['get', 0, 'lora', 'model'],
    ['lora', 0, 'off', 'model'],
    ['off', 0, 'knee', '', '*'],
    ['knee', 0, 'node', 'model']
  ]
  const { files, weight_dtype } = ask(nodes, links).question
  assert.deepEqual({ files, weight_dtype }, FLUX)
})

test('a model goes through Set and Get down the line, too', () => {
  const get = { type: 'GetNode', widgets: { Constant: 'model' }, outputs: ['MODEL'] }
  const set = { type: 'SetNode', widgets: { Constant: 'model' }, outputs: ['*'] }
  const other = { ...get, widgets: { Constant: 'another' } }
  const links = [LOADED, ['node', 0, 'set', 'MODEL'], ['get', 0, 'sampler', 'model'], ['other', 0, 'lone', 'model']]
  const { samplers } = ask({ set, get, other, sampler: sampler(5), lone: sampler(6) }, links).question
  assert.deepEqual(
    samplers.map(({ cfg }) => cfg),
    [5]
  )
})

test('files are what a loader offers as lists, and the folders of Load DiT', () => {
  const files = (type, widgets, change = () => {}) => {
    const made = graphOf({ node: NODE, loader: { type, widgets, outputs: ['MODEL'] } }, [LOADED])
    change(made.loader)
    return makeQuestion(made.node).question.files
  }
  const many = {
    ckpt_name: 'sdxl.safetensors',
    vae_name: 'Baked VAE',
    lora_name: 'None',
    clip_skip: -1,
    text: 'a.gguf'
  }
  const isText = ({ widgets }) => {
    widgets.at(-1).type = 'text'
  }
  assert.deepEqual(files('Efficient Loader', many, isText), { ckpt_name: 'sdxl.safetensors' })
  assert.deepEqual(files('ParallelDiT_LoadDiT', { model_name: 'demo' }), { model_name: 'demo' })
  assert.deepEqual(files('AnotherPacksLoader', { model_name: 'demo' }), {})
})

test('where only a run can tell the file, the question has none', () => {
  const math = { type: 'Names', outputs: ['COMBO'] }
  assert.deepEqual(ask({ math }, [LOADED, ['math', 0, 'loader', 'unet_name', 'COMBO']]).question.files, {})
  const name = { type: 'PrimitiveString', widgets: { value: 'wan.safetensors' }, outputs: ['STRING'] }
  const links = [LOADED, ['name', 0, 'loader', 'unet_name', 'STRING']]
  assert.deepEqual(ask({ name }, links).question.files, { unet_name: 'wan.safetensors' })
  for (const mode of [2, 4]) assert.deepEqual(ask({ loader: { ...LOADER, mode } }, [LOADED]).question.files, {})
  assert.deepEqual(ask({}, []).question.files, {})
})

test('of two nodes in a row the last one asks, about the file before both', () => {
  const links = [LOADED, ['node', 0, 'last', 'model'], ['last', 0, 'sampler', 'model']]
  const nodes = graphOf({ node: NODE, loader: LOADER, last: NODE, sampler: sampler(3) }, links)
  assert.deepEqual(makeQuestion(nodes.node), { question: null, why: ['plan.replaced'] })
  assert.equal(findRun(nodes.node), null)
  const { question } = makeQuestion(nodes.last)
  assert.deepEqual([question.files, question.samplers.length], [FLUX.files, 1])
  nodes.last.mode = 4
  assert.equal(makeQuestion(nodes.node).question.samplers.length, 1, 'the last is bypassed')
  assert.deepEqual(makeQuestion(nodes.last), { question: null, why: null })
})

test('a sampler without a second node between still counts for the first', () => {
  const links = [LOADED, ['node', 0, 'last', 'model'], ['last', 0, 'two', 'model'], ['node', 0, 'one', 'model']]
  const { samplers } = ask({ last: NODE, one: sampler(1), two: sampler(2) }, links).question
  assert.deepEqual(
    samplers.map(({ cfg }) => cfg),
    [1]
  )
})

test("behind a guider, the question has the guider's cfg and the sampler's type", () => {
  const nodes = {
    guider: { type: 'BasicGuider', outputs: ['GUIDER'] },
    select: { type: 'KSamplerSelect', widgets: { sampler_name: 'heun' }, outputs: ['SAMPLER'] },
    custom: { type: 'SamplerCustomAdvanced', outputs: ['LATENT', 'LATENT'] }
  }
  const links = [
    LOADED,
    ['node', 0, 'guider', 'model'],
    ['guider', 0, 'custom', 'guider'],
    ['select', 0, 'custom', 'sampler']
  ]
  assert.deepEqual(ask(nodes, links).question.samplers, [{ type: 'SamplerCustomAdvanced', cfg: 1, picture: null }])
})

test('the sampled size is known if an empty-latent node makes the latent, with whole numbers', () => {
  const latent = (widgets, node = {}) => ({ type: 'Empty', widgets, outputs: ['LATENT'], ...node })
  const picture = (made, ...more) => {
    const links = [
      LOADED,
      ['node', 0, 'sampler', 'model'],
      ['knee', 0, 'sampler', 'latent_image', 'LATENT'],
      ['latent', 0, 'knee', '', '*'],
      ...more
    ]
    const knee = { type: 'Reroute', outputs: ['*'] }
    const width = { type: 'PrimitiveInt', widgets: { value: 640 }, outputs: ['INT'] }
    return ask({ sampler: sampler(1), knee, latent: made, width }, links).question.samplers[0].picture
  }
  const video = { width: 832, height: 480, length: 81, batch_size: 1, color: 'red' }
  assert.deepEqual(picture(latent(video)), { width: 832, height: 480, length: 81, batch_size: 1 })
  assert.deepEqual(picture(latent(video), ['width', 0, 'latent', 'width', 'INT']).width, 640)
  assert.deepEqual(picture(latent({ width: 64, height: 64 })), { width: 64, height: 64 })
  for (const other of [{ width: 64 }, { width: 64, height: 0.5 }, { width: 64, height: '64' }]) {
    assert.equal(picture(latent(other)), null)
  }
  assert.equal(picture(latent(video, { mode: 4 })), null)
  assert.equal(picture(latent(video), ['width', 0, 'latent', 'samples', 'LATENT']), null)
})

test('a sampler behind another one samples the same size', () => {
  const nodes = {
    sampler: sampler(1),
    first: { type: 'KSampler', outputs: ['LATENT'] },
    latent: { type: 'Empty', widgets: { width: 64, height: 48 }, outputs: ['LATENT'] }
  }
  const links = [
    LOADED,
    ['node', 0, 'first', 'model', 'MODEL'],
    ['node', 0, 'sampler', 'model', 'MODEL'],
    ['latent', 0, 'first', 'latent_image', 'LATENT'],
    ['first', 0, 'sampler', 'latent_image', 'LATENT']
  ]
  const size = { width: 64, height: 48 }
  assert.deepEqual(
    ask(nodes, links).question.samplers.map(({ picture }) => picture),
    [size, size]
  )
})

/** Nodes in a subgraph that is seen as these hosts, each {inputs, outputs, widgets}, of the names that link in and out. */
function within(nodes, links, hosts) {
  const made = graphOf(nodes, links)
  const [{ graph }] = Object.values(made)
  const outside = { getNodeById: () => null, subgraphs: new Map([['sub', graph]]) }
  outside.nodes = hosts.map(({ widgets = {}, inputs = [] }) => ({
    graph: outside,
    subgraph: graph,
    mode: 0,
    inputs: inputs.map((name) => ({ name, link: null })),
    outputs: [],
    getWidgetFromSlot: ({ name }) => (name in widgets ? { value: widgets[name] } : undefined)
  }))
  Object.assign(graph, { rootGraph: outside })
  const { getLink } = graph
  graph.getLink = (id) => {
    const { origin_id: from } = getLink(id)
    return { ...getLink(id), ...(from === 'in' ? { originIsIoNode: true, origin_slot: links[id][1] } : {}) }
  }
  return made
}

test("a value at a subgraph's node counts, unless several nodes show the subgraph", () => {
  const nodes = { node: NODE, loader: LOADER, sampler: sampler(3) }
  const links = [LOADED, ['node', 0, 'sampler', 'model'], ['in', 0, 'sampler', 'cfg'], ['in', 1, 'loader', 'unet_name']]
  const host = (cfg) => ({ inputs: ['guidance', 'file'], widgets: { guidance: cfg, file: 'wan.gguf' } })
  const askIn = (...hosts) => makeQuestion(within(nodes, links, hosts).node).question
  const { files, samplers } = askIn(host(1.5))
  assert.deepEqual([files.unet_name, samplers[0].cfg], ['wan.gguf', 1.5])
  assert.deepEqual(askIn(host(1.5), host(2)).files, {}, 'it may be another each time')
})

test('a node in a subgraph finds loader and samplers outside', () => {
  const inner = graphOf({ node: NODE }, [])
  const outer = graphOf({ loader: LOADER, sub: { type: 'sub' }, sampler: sampler(4) }, [
    ['loader', 0, 'sub', 'model'],
    ['sub', 0, 'sampler', 'model']
  ])
  const { graph: root } = outer.loader
  const { graph } = inner.node
  Object.assign(root, { subgraphs: new Map([['sub', graph]]), rootGraph: root })
  Object.assign(outer.sub, { subgraph: graph, outputs: [{ type: 'MODEL', links: [1] }] })
  Object.assign(graph, { rootGraph: root, inputs: [{ linkIds: ['in'] }], outputs: [{ linkIds: ['out'] }] })
  const both = {
    in: { target_id: 'node', originIsIoNode: true, origin_slot: 0 },
    out: { origin_id: 'node', targetIsIoNode: true, target_slot: 0 }
  }
  graph.getLink = (id) => both[id]
  Object.assign(inner.node, { inputs: [{ name: 'model', type: 'MODEL', link: 'in' }] })
  inner.node.outputs[0].links = ['out']
  const { getLink } = root
  root.getLink = (id) => ({ ...getLink(id), target_slot: 0, origin_slot: 0 })
  const { files, samplers } = makeQuestion(inner.node).question
  assert.deepEqual([files, samplers[0]?.cfg], [FLUX.files, 4])
})

test('a linked degree is read from a primitive; behind a node that computes, it is named as open', () => {
  const links = [LOADED, ['number', 0, 'node', 'cfg', 'INT']]
  const primitive = { type: 'PrimitiveInt', widgets: { value: 4 }, outputs: ['INT'] }
  assert.equal(ask({ number: primitive }, links).question.values.cfg, 4)
  const math = { type: 'Math', widgets: { formula: '1+1' }, outputs: ['INT'] }
  assert.deepEqual(ask({ number: math }, links), { question: null, why: ['plan.open', { names: 'cfg' }] })
  const auto = { ...NODE, widgets: { mode: 'auto', cfg: 2 } }
  assert.equal(ask({ node: auto, number: math }, links).why, null)
})

test("the node's own drawing is not part of the question, and another plan takes the place of its own", () => {
  const { node } = graphOf({ node: NODE }, [])
  node.widgets.push({ name: 'mesh', value: '', serialize: false })
  assert.deepEqual(makeQuestion(node).question.values, { mode: 'manual', cfg: 2 })
  assert.deepEqual(makeQuestion(node, { mode: 'auto' }).question.values, { mode: 'auto' })
})

test('the answers about nodes that run are listed by worker group', () => {
  const lone = { ...NODE, widgets: { mode: 'auto' } }
  const nodes = graphOf({ loader: LOADER, node: NODE, also: NODE, lone, muted: { ...NODE, mode: 2 } }, [
    LOADED,
    ...['also', 'lone', 'muted'].map((to) => ['loader', 0, to, 'model'])
  ])
  const [root, answers] = [nodes.node.graph, [{ plan: 'cfg=2' }, { plan: 'ulysses=2' }]]
  Object.assign(root, { subgraphs: new Map() })
  let heard = 0
  onAnswer(() => heard++)
  assert.deepEqual([...findNextRuns(root)], [], 'nothing was answered yet')
  noteAnswer(nodes.node, answers[0])
  noteAnswer(nodes.lone, answers[1])
  noteAnswer(nodes.muted, answers[1])
  assert.equal(heard, 3)
  const models = ['flux.safetensors']
  assert.deepEqual(
    [...findNextRuns(root)],
    [
      [2, [{ answer: answers[0], models }]],
      [1, [{ answer: answers[1], models }]]
    ]
  )
  noteAnswer(nodes.node, null)
  assert.equal(findNextRuns(root).has(2), false)
})

test('models whose files are missing are one answer, in the order in which they are sampled', () => {
  const named = (name) => ({ ...LOADER, widgets: { unet_name: `${name}.gguf` } })
  const nodes = graphOf(
    { one: named('low'), two: named('high'), low: NODE, high: NODE, second: sampler(3), first: sampler(3) },
    [
      ['one', 0, 'low', 'model'],
      ['two', 0, 'high', 'model'],
      ['low', 0, 'second', 'model'],
      ['high', 0, 'first', 'model']
    ]
  )
  Object.assign(nodes.first, { order: 3 })
  Object.assign(nodes.second, { order: 4 })
  const root = Object.assign(nodes.low.graph, { subgraphs: new Map() })
  const missing = (model) => ({ plan: '', missing: [{ model, folder: 'diffusion_models' }] })
  noteAnswer(nodes.low, missing('low.gguf'))
  noteAnswer(nodes.high, missing('high.gguf'))
  const [run, ...others] = findNextRuns(root).get(2)
  assert.deepEqual([run.models, others], [['high.gguf', 'low.gguf'], []])
  assert.deepEqual(
    run.answer.missing.map((each) => each.model),
    ['high.gguf', 'low.gguf']
  )
})

test("a node has the last run of its samplers, of which it hears by the node's execution id", () => {
  const nodes = graphOf({ node: NODE, 7: sampler(3), 8: sampler(3) }, [['node', 0, '7', 'model']])
  const [{ graph }, run] = [nodes.node, { id: 1, node: '7', began: 5, state: 'running' }]
  assert.equal(noteRuns(graph, [run]), false)
  assert.equal(noteRuns(graph, [{ ...run, state: 'done' }]), true)
  assert.equal(noteRuns(graph, [{ ...run, state: 'done' }]), false, 'it has ended before')
  assert.equal(
    noteRuns(graph, [
      { ...run, node: '8', began: 9, state: 'done' },
      { ...run, node: '5:7' }
    ]),
    true
  )
  assert.equal(findRan(nodes.node).began, 5)
})
