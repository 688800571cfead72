import assert from 'node:assert/strict'
import { test } from 'node:test'

import { findInstead, listParallelizers, listSlots, PARALLELIZERS, sortNodes } from '../../web/convert/line.mjs'
import { findPlace } from '../../web/convert/place.mjs'

/**
 * Graphs as LiteGraph has them, the root first. Each has nodes, by name {type, in: [types], out: [types], of: a graph's
 * number, named}, and links, each 'from.slot to.slot', where a subgraph's own inputs are 'in' and its outputs are 'out'.
 */
function make(...graphs) {
  const made = graphs.map((_, number) => ({ id: number, extra: {}, inputs: [], outputs: [] }))
  const [root, ...subgraphs] = made
  root.subgraphs = new Map(subgraphs.map((graph) => [graph.id, graph]))
  const found = {}
  for (const [number, { nodes, links }] of graphs.entries()) {
    const graph = made[number]
    const ends = links.map((link) => link.split(' ').map((end) => [end.split('.')[0], Number(end.split('.')[1] ?? 0)]))
    const typeOf = ([name, slot]) => (nodes[name]?.in ?? [])[slot] ?? 'MODEL'
    const list = ends.map(([from, to]) => ({
      ...{ origin_id: from[0], origin_slot: from[1], target_id: to[0], target_slot: to[1], type: typeOf(to) },
      ...{ originIsIoNode: from[0] === 'in', targetIsIoNode: to[0] === 'out' }
    }))
    const select = (end, name, slot) =>
      list.flatMap((link, id) => (link[`${end}_id`] === name && link[`${end}_slot`] === slot ? [id] : []))
    graph.rootGraph = root
    graph.getLink = (id) => list[id]
    graph.getNodeById = (id) => graph.nodes.find((node) => node.id === id) ?? null
    graph.inputs = [0, 1].map((slot) => ({ linkIds: select('origin', 'in', slot) }))
    graph.outputs = [0, 1].map((slot) => ({ linkIds: select('target', 'out', slot) }))
    graph.nodes = Object.entries(nodes).map(([id, node]) => ({
      ...{ id, graph, type: node.type ?? id, mode: node.mode ?? 0, subgraph: made[node.of], title: id },
      ...(node.named && { widgets: [{ value: node.named }] }),
      ...(node.saved && { widgets_values: [node.saved] }),
      inputs: (node.in ?? []).map((type, slot) => ({ type, name: `in${slot}`, link: select('target', id, slot)[0] })),
      outputs: (node.out ?? []).map((type, slot) => ({ type, links: select('origin', id, slot) }))
    }))
    for (const node of graph.nodes) found[node.id] = node
  }
  return { root, nodes: found, all: made.flatMap((graph) => graph.nodes) }
}

const LOADER = { out: ['MODEL', 'CLIP', 'VAE'] }
const LORA = { in: ['MODEL'], out: ['MODEL'] }
const SAMPLER = { in: ['MODEL'], out: ['LATENT'] }
const OURS = { type: PARALLELIZERS.MODEL, in: ['MODEL'], out: ['MODEL'] }
const name = (nodes) => nodes.map(({ id }) => id)
const sort = ({ all }) => Object.fromEntries(Object.entries(sortNodes(all)).map(([key, nodes]) => [key, name(nodes)]))
const NONE = { makers: [], insteads: [], piped: [], closed: [] }

test('the makers of models are those without a MODEL input, in subgraphs too', () => {
  const graphs = make(
    { nodes: { loader: LOADER, lora: LORA, host: { out: ['MODEL'], of: 1 }, sampler: SAMPLER, second: SAMPLER },
      links: ['loader lora', 'lora sampler', 'host second'] },
    { nodes: { inner: LOADER, patch: LORA }, links: ['inner patch', 'patch out'] }
  ) // biome-ignore format: a line each
  assert.deepEqual(sort(graphs), { ...NONE, makers: ['loader', 'inner'] })
})

test('a maker without links is left alone unless none is linked', () => {
  const nodes = { loader: LOADER, idle: LOADER, sampler: SAMPLER }
  assert.deepEqual(sort(make({ nodes, links: ['loader sampler'] })).makers, ['loader'])
  assert.deepEqual(sort(make({ nodes, links: [] })).makers, ['loader', 'idle'])
  assert.deepEqual(sort(make({ nodes: { ...nodes, ours: OURS }, links: ['loader ours', 'ours sampler'] })).makers, [])
})

test('no second node is added where one stands anywhere on the line: behind reroutes, LoRAs, Set and Get, in subgraphs', () => {
  const knee = { type: 'Reroute', in: ['*'], out: ['MODEL'] }
  const lines = [
    [{ nodes: { loader: LOADER, ours: OURS }, links: ['loader ours'] }],
    [{ nodes: { loader: LOADER, ours: { ...OURS, mode: 4 } }, links: ['loader ours'] }],
    [{ nodes: { loader: LOADER, knee, lora: LORA, ours: OURS }, links: ['loader knee', 'knee lora', 'lora ours'] }],
    [
      {
        nodes: {
          loader: LOADER,
          set: { type: 'SetNode', in: ['MODEL'], out: ['*'], saved: 'a' },
          other: { type: 'GetNode', out: ['MODEL'], saved: 'b' },
          get: { type: 'GetNode', out: ['MODEL'], saved: 'a' },
          ours: OURS,
          sampler: SAMPLER
        },
        links: ['loader set', 'get ours', 'other sampler']
      }
    ],
    [
      { nodes: { loader: LOADER, host: { in: ['MODEL'], out: ['LATENT'], of: 1 } }, links: ['loader host'] },
      { nodes: { lora: LORA, ours: OURS }, links: ['in lora', 'lora ours'] }
    ],
    [
      { nodes: { host: { out: ['MODEL'], of: 1 }, ours: OURS }, links: ['host ours'] },
      { nodes: { loader: LOADER }, links: ['loader out'] }
    ]
  ]
  for (const graphs of lines) {
    const made = make(...graphs)
    assert.deepEqual(sort(made), NONE)
    assert.deepEqual(name(listParallelizers(made.nodes.loader, 'MODEL')), ['ours'])
  }
})

test('a node behind Parallelize Model is parallel already, and one beside it is not', () => {
  const { nodes } = make({
    nodes: { loader: LOADER, ours: OURS, lora: LORA, beside: LORA, sampler: SAMPLER },
    links: ['loader ours', 'ours lora', 'lora sampler', 'loader beside']
  })
  assert.deepEqual(name(listParallelizers(nodes.lora, 'MODEL')), ['ours'])
  assert.deepEqual(name(listParallelizers(nodes.ours, 'MODEL')), ['ours'])
  assert.deepEqual(listParallelizers(nodes.beside, 'MODEL'), [])
  assert.deepEqual(listParallelizers(nodes.loader, 'VAE'), [])
})

test('a model that comes out of a pipe is made where it went in, and one that only a pipe carries is named', () => {
  const pipe = { in: ['BASIC_PIPE'], out: ['MODEL'] }
  const through = make({
    nodes: { loader: LOADER, into: { in: ['MODEL'], out: ['BASIC_PIPE'] }, from: pipe, sampler: SAMPLER },
    links: ['loader into', 'into from', 'from sampler']
  })
  assert.deepEqual(sort(through), { ...NONE, makers: ['loader'] })
  const easy = { out: ['PIPE_LINE', 'MODEL', 'VAE'] }
  const consumer = { in: ['PIPE_LINE'], out: ['PIPE_LINE'] }
  assert.deepEqual(sort(make({ nodes: { easy, consumer }, links: ['easy consumer'] })), { ...NONE, piped: ['easy'] })
  const out = { in: ['PIPE_LINE'], out: ['PIPE_LINE', 'MODEL'] }
  const opened = make({ nodes: { easy, out, sampler: SAMPLER }, links: ['easy out', 'out.1 sampler'] })
  assert.deepEqual(sort(opened), { ...NONE, makers: ['out'], piped: ['easy'] })
})

test('reroutes and switches make no model, whatever type their slots have', () => {
  const [any, knee] = [
    { in: ['*'], out: ['MODEL'] },
    { type: 'Reroute', in: ['*'], out: ['MODEL'] }
  ]
  const nodes = { loader: LOADER, knee, any, one: SAMPLER, two: SAMPLER }
  const links = ['loader knee', 'loader any', 'knee one', 'any two']
  assert.deepEqual(sort(make({ nodes, links })).makers, ['loader'])
})

test('a loader that takes a text of another loader makes its own model', () => {
  const nodes = { first: { out: ['MODEL', 'STRING'] }, second: { in: ['STRING'], out: ['MODEL'] }, one: SAMPLER }
  const made = make({ nodes: { ...nodes, two: SAMPLER }, links: ['first one', 'first.1 second', 'second two'] })
  assert.deepEqual(sort(made).makers, ['first', 'second'])
})

test('loaders of other packs without a MODEL are named with what to use instead, those that only pass models are not', () => {
  const kinds = { WANVIDEOMODEL: 'wan', HYVIDEOMODEL: 'hunyuan', COGVIDEOMODEL: 'cogvideo', FunModels: 'fun' }
  for (const [type, instead] of Object.entries(kinds)) {
    const { nodes } = make({ nodes: { loader: { out: [type] }, swap: { in: [type], out: [type] } }, links: [] })
    assert.deepEqual([findInstead(nodes.loader), findInstead(nodes.swap)], [instead, undefined])
  }
  const nunchaku = { type: 'NunchakuQwenImageDiTLoader', out: ['MODEL'] }
  const made = make({ nodes: { nunchaku, sampler: SAMPLER }, links: ['nunchaku sampler'] })
  assert.deepEqual(sort(made), { ...NONE, insteads: ['nunchaku'] })
})

test('an old group node is named if it holds a loader and does not give its model', () => {
  const made = make({
    nodes: { closed: { type: 'workflow>a' }, again: { type: 'workflowa' }, open: { type: 'workflow/b' } },
    links: []
  })
  const loader = { type: 'L', outputs: [{ type: 'MODEL', links: [] }] }
  made.root.extra.groupNodes = { a: { nodes: [loader] }, b: { nodes: [{ type: 'X' }] } }
  assert.deepEqual(sort(made), { ...NONE, closed: ['closed', 'again'] })
})

test('a node stands behind all linked outputs of a type, or behind all if none is linked', () => {
  const nodes = { two: { out: ['MODEL', 'MODEL', 'VAE'] }, one: SAMPLER }
  assert.deepEqual(listSlots(make({ nodes, links: ['two.1 one'] }).nodes.two, 'MODEL'), [1])
  assert.deepEqual(listSlots(make({ nodes, links: [] }).nodes.two, 'MODEL'), [0, 1])
})

test('a new node stands to the right where it covers no other, if it can in the same group', () => {
  const node = { pos: { 0: 100, 1: 100 }, size: { 0: 200, 1: 80 } } // as very old files have it
  const box = (x, y, width, height, flags) => ({ pos: [x, y], size: [width, height], flags })
  const size = [200, 60]
  assert.deepEqual(findPlace(node, size, [node], []), [340, 100])
  assert.deepEqual(findPlace(node, size, [node, box(350, 100, 200, 50)], []), [340, 220])
  assert.deepEqual(findPlace(node, size, [node, box(350, 100, 200, 50, { collapsed: true })], []), [340, 140])
  const group = { pos: [80, 40], size: [240, 400] }
  assert.deepEqual(findPlace(node, size, [node], [group]), [100, 220])
  const wall = box(0, -2000, 2000, 4000)
  assert.deepEqual(findPlace(node, size, [node, wall], []), [340, 100], 'nowhere is room')
})
